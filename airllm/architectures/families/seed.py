"""Seed-OSS (ByteDance, 2025). In GGUF files, the norm before the feed-forward is post_attention_norm."""

from airllm.architectures.declaration import Architecture, Biases, Tiny

SEED_OSS = Architecture(
    name="seed_oss",
    title="Seed-OSS",
    model_types=("seed_oss",),
    biases=Biases(qkv=("attention_bias", True), output=("attention_out_bias", False)),
    folder_defaults={"norm_eps": 1e-6, "kv_heads": 8, "head_dim": 128},
    gguf_names={"feed_forward.norm": "post_attention_norm.weight"},
    tiny={
        "seed_oss": Tiny({"head_dim": 16, "num_hidden_layers": 2, "attention_bias": True}),
        "seed_oss_bias": Tiny(
            {
                "num_hidden_layers": 2,
                "head_dim": None,
                "num_attention_heads": 2,
                "attention_bias": False,
                "attention_out_bias": True,
                "tie_word_embeddings": True,
            },
            "float16",
            gguf=False,
        ),
    },
)
