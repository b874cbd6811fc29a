"""GPT-OSS (OpenAI, 2025): heads with sinks, alternating windows, only experts, whose gate and up are clamped.

Its router's softmax over the chosen experts equals the softmax over all, normalized to sum to one.
"""

from functools import partial

from airllm.architectures.declaration import Architecture, Biases, Rotary, Stacks, Tiny, Window
from airllm.architectures.values import Values, every_layer

_TINY = {
    "head_dim": 16,
    "intermediate_size": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "sliding_window": 8,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}


GPT_OSS = Architecture(
    name="gpt-oss",
    title="GPT-OSS",
    model_types=("gpt_oss",),
    rotary=Rotary(theta=150000.0, yarn_truncates=False),
    window=Window(default=128, all_but_every=2),
    biases=Biases(qkv=("attention_bias", True), output=("attention_bias", True), router=True, experts=True),
    sinks=True,
    experts=every_layer,
    folder_stacks=Stacks(transposed=True, interleaved=True),
    numbers=("swiglu_alpha", "swiglu_limit"),
    keys={
        "activation": {"check": partial(Values.one_of, known={"silu": "swiglu_clamped"})},
        "normalize_experts": {"gguf": "", "folder": ""},
        "expert_feed_forward": {"folder": "intermediate_size"},
    },
    defaults={"activation": "swiglu_clamped"},
    folder_defaults={"head_dim": 64},
    gguf_names={"feed_forward.norm": "post_attention_norm.weight"},
    folder_names={
        "experts.router": "mlp.router.weight",
        "experts.router_bias": "mlp.router.bias",
        "experts.gate": "mlp.experts.gate_up_proj",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
        "experts.gate_bias": "mlp.experts.gate_up_proj_bias",
        "experts.up_bias": "mlp.experts.gate_up_proj_bias",
        "experts.down_bias": "mlp.experts.down_proj_bias",
    },
    tiny={
        "gpt_oss": Tiny({**_TINY, "rope_parameters": {**_YARN, "truncate": False}}),
        "gpt_oss_limit": Tiny(
            {
                **_TINY,
                "rope_parameters": {**_YARN, "truncate": True},
                "swiglu_limit": 0.25,
                "swiglu_alpha": 1.25,
                "layer_types": ["full_attention", "sliding_attention"],
                "attention_bias": False,
            },
            "float16",
            gguf=False,
        ),
    },
)
