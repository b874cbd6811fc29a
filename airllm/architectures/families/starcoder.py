"""StarCoder 2 (Lozhkov et al., 2024): layer norms, biases everywhere, and a feed-forward without a gate."""

from airllm.architectures.declaration import Architecture, Biases, Norms, Rotary, Tiny, Window

_BIAS = ("use_bias", True)
_TINY = {"num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}

STARCODER2 = Architecture(
    name="starcoder2",
    title="StarCoder 2",
    model_types=("starcoder2",),
    norms=Norms(kind="layer", bias=True),
    rotary=Rotary(),
    window=Window(),
    biases=Biases(qkv=_BIAS, output=_BIAS, feed_forward=_BIAS),
    gated=False,
    tied=True,
    keys={"norm_eps": {"gguf": "attention.layer_norm_epsilon", "folder": "norm_epsilon"}},
    defaults={"activation": "gelu_tanh"},
    folder_defaults={"norm_eps": 1e-5},
    folder_names={
        "feed_forward.up": "mlp.c_fc.weight",
        "feed_forward.down": "mlp.c_proj.weight",
        "feed_forward.up_bias": "mlp.c_fc.bias",
        "feed_forward.down_bias": "mlp.c_proj.bias",
    },
    tiny={
        "starcoder2": Tiny({**_TINY, "norm_epsilon": 1e-3, "tie_word_embeddings": True}),
        "starcoder2_window": Tiny(
            {**_TINY, "num_attention_heads": 2, "sliding_window": 8, "use_bias": False}, "float16", gguf=False
        ),
    },
)
