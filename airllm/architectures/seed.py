"""Seed-OSS (ByteDance, 2025). GGUF files call the norm before the feed-forward part post_attention_norm."""

from airllm.architectures.declaration import Architecture, Biases

SEED_OSS = Architecture(
    name="seed_oss",
    title="Seed-OSS",
    model_types=("seed_oss",),
    biases=Biases(qkv=("attention_bias", True), output=("attention_out_bias", False)),
    folder_defaults={"norm_eps": 1e-6, "kv_heads": 8, "head_dim": 128},
    gguf_names={"feed_forward.norm": "post_attention_norm.weight"},
)
