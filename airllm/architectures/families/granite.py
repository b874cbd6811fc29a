"""Granite 3 and 4 without Mamba (IBM, 2024): Llama with four scales."""

from airllm.architectures.declaration import Tiny
from airllm.architectures.families.llama import LLAMA

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.125,
    "logits_scaling": 8.0,
}

GRANITE = LLAMA.but(
    "granite",
    title="Granite 3 and 4 dense",
    model_types=("granite",),
    numbers=("embedding_scale", "residual_scale", "logit_scale"),
    keys={"attention_scale": {"folder": "attention_multiplier"}},
    folder_defaults={"attention_scale": 1.0},
    tiny={
        "granite": Tiny({**MULTIPLIERS, "num_hidden_layers": 2}),
        "granite_tied": Tiny(
            {
                **MULTIPLIERS,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "num_hidden_layers": 2,
                "attention_bias": True,
                "tie_word_embeddings": True,
            },
            "float16",
        ),
    },
)
