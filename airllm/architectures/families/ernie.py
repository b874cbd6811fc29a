"""ERNIE 4.5 (Baidu, 2025), dense and with experts: softmax scores with a bias that only chooses, and shared
experts without a gate.
"""

from airllm.architectures.declaration import REMOVED, Architecture, Biases, Rotary, Tiny
from airllm.architectures.values import Values

_TINY = {
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}


def _some_layers(values: Values, layers: int) -> tuple[bool, ...]:
    first, step = (
        values.whole("moe_layer_start_index", 1, layers, least=0),
        values.whole("moe_layer_interval", 1),
    )
    last = values.get("moe_layer_end_index", (int,), "a whole number", -1)
    last = layers - 1 if last == -1 else last
    return tuple(first <= layer <= last and (layer + 1) % step == 0 for layer in range(layers))


ERNIE = Architecture(
    name="ernie4_5",
    title="ERNIE 4.5 dense",
    model_types=("ernie4_5",),
    rotary=Rotary(theta=5e5, neighbours=True, neighbours_in_folders=True),
    biases=Biases(qkv=False, output=False, feed_forward=False),
    refused={"use_bias": "false: these models have no biases"},
    tied=True,
    folder_defaults={"norm_eps": 1e-5, "kv_heads": 2, "head_dim": 128},
    tiny={
        "ernie": Tiny({**_TINY, "head_dim": 16, "tie_word_embeddings": True}),
    },
)
ERNIE_MOE = ERNIE.but(
    "ernie4_5-moe",
    title="ERNIE 4.5 with experts",
    model_types=("ernie4_5_moe",),
    biases=Biases(qkv=False, output=False, feed_forward=False, selection=True),
    experts=_some_layers,
    shared_gate=False,
    numbers=("shared_experts", "shared_expert", "dense_layers", "moe_step"),
    keys={
        "experts": {"folder": "moe_num_experts"},
        "experts_used": {"folder": "moe_k"},
        "normalize_experts": {"gguf": "", "folder": ""},
        "shared_experts": {"folder": "moe_num_shared_experts"},
        "shared_expert": {"folder": ""},
        "dense_layers": {"folder": "moe_layer_start_index"},
        "moe_step": {"folder": "moe_layer_interval"},
    },
    folder_defaults={
        "kv_heads": 4,
        "head_dim": REMOVED,
        "expert_feed_forward": 1536,
        "shared_experts": 2,
        "dense_layers": 1,
    },
    folder_names={
        "experts.selection_bias": "mlp.moe_statics.e_score_correction_bias",
        "shared_expert.gate": "mlp.shared_experts.gate_proj.weight",
        "shared_expert.up": "mlp.shared_experts.up_proj.weight",
        "shared_expert.down": "mlp.shared_experts.down_proj.weight",
    },
    tiny={
        "ernie_moe": Tiny(
            {
                **_TINY,
                "num_hidden_layers": 3,
                "moe_num_experts": 5,
                "moe_k": 2,
                "moe_intermediate_size": 32,
                "moe_num_shared_experts": 1,
            },
            "float16",
        ),
    },
)
