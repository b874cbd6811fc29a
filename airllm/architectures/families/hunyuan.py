"""Hunyuan V1 (Tencent, 2025): norms of queries and keys after their rotation; experts beside a shared one.

Folders say "dynamic" of a rotation that is scaled once, by `alpha`, for any length of text.
"""

from airllm.architectures.declaration import SCALINGS, Architecture, Norms, Rotary, Tiny
from airllm.architectures.keys import number_of
from airllm.architectures.values import Values, every_layer

_ALPHA = {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}


HUNYUAN_DENSE = Architecture(
    name="hunyuan-dense",
    title="Hunyuan V1 dense",
    model_types=("hunyuan_v1_dense",),
    norms=Norms(q_and_k="head", q_and_k_late=True),
    rotary=Rotary(scalings=SCALINGS | {"dynamic": "alpha"}),
    folder_names={
        "attention.q_norm": "self_attn.query_layernorm.weight",
        "attention.k_norm": "self_attn.key_layernorm.weight",
    },
    folder_defaults={"norm_eps": 1e-5},
    tiny={
        "hunyuan_dense": Tiny(
            {"head_dim": 16, "num_hidden_layers": 2, "tie_word_embeddings": True, "rope_parameters": _ALPHA}
        ),
    },
)
HUNYUAN_MOE = HUNYUAN_DENSE.but(
    "hunyuan-moe",
    title="Hunyuan A13B",
    model_types=("hunyuan_v1_moe",),
    experts=every_layer,
    shared_gate=False,
    numbers=("shared_experts", "shared_expert"),
    keys={
        "experts_used": {"folder": "moe_topk", "check": Values.alike},
        "expert_feed_forward": {"check": Values.alike},
        "normalize_experts": {"gguf": "", "folder": ""},
        "shared_experts": {"folder": "num_shared_expert", "check": Values.alike},
        "shared_expert": {"folder": "", "default": number_of("feed_forward")},
    },
    folder_defaults={"shared_experts": 1},
    folder_names={
        "experts.router": "mlp.gate.wg.weight",
        "shared_expert.gate": "mlp.shared_mlp.gate_proj.weight",
        "shared_expert.up": "mlp.shared_mlp.up_proj.weight",
        "shared_expert.down": "mlp.shared_mlp.down_proj.weight",
    },
    tiny={
        "hunyuan_moe": Tiny(
            {
                "head_dim": 8,
                "num_hidden_layers": 2,
                "intermediate_size": 32,
                "num_experts": 5,
                "moe_topk": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            },
            "float16",
        ),
    },
)
