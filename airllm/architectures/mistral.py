"""Mistral (Jiang et al., 2023), Mixtral (Jiang et al., 2024) and Ministral 3. GGUF files call the first two
llama.
"""

from airllm.architectures.declaration import Rotary, Tiny, Window
from airllm.architectures.llama import LLAMA
from airllm.architectures.values import Values

MISTRAL = LLAMA.but(
    title="Mistral 7B, Nemo, Small 3",
    model_types=("mistral",),
    parts_of=("mistral3",),
    window=Window(default=4096, listed=True),
    tiny={"mistral": Tiny({"head_dim": 16, "sliding_window": 8}, "float16")},
)


def _every_layer(values: Values, layers: int) -> tuple[bool, ...]:
    return (True,) * layers


MIXTRAL = MISTRAL.but(
    title="Mixtral",
    model_types=("mixtral",),
    rotary=Rotary(theta=1e6, neighbours=True),
    window=Window(),
    experts=_every_layer,
    keys={
        "experts": {"folder": "num_local_experts"},
        "expert_feed_forward": {"folder": "intermediate_size"},
        "normalize_experts": {"folder": ""},
    },
    folder_names={
        "experts.router": "block_sparse_moe.gate.weight",
        "experts.gate": "block_sparse_moe.experts.{expert}.w1.weight",
        "experts.up": "block_sparse_moe.experts.{expert}.w3.weight",
        "experts.down": "block_sparse_moe.experts.{expert}.w2.weight",
    },
    tiny={
        "mixtral": Tiny(
            {
                "num_attention_heads": 2,
                "num_local_experts": 4,
                "num_hidden_layers": 2,
                "intermediate_size": 32,
                "num_experts_per_tok": 2,
                "sliding_window": None,
            }
        )
    },
)
MINISTRAL3 = MISTRAL.but(
    "mistral3",
    title="Ministral 3, Devstral 2",
    model_types=("ministral3",),
    parts_of=("mistral3",),
    rotary=Rotary(theta=1e6, neighbours=True, temperature=True),
    window=Window(),
    folder_defaults={"norm_eps": 1e-5, "kv_heads": 8, "head_dim": 128},
)
