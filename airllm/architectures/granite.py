"""Granite 3 and 4 without Mamba (IBM, 2024): Llama with four scales."""

from airllm.architectures.llama import LLAMA

GRANITE = LLAMA.but(
    "granite",
    title="Granite 3 and 4 dense",
    model_types=("granite",),
    numbers=("embedding_scale", "residual_scale", "logit_scale"),
    keys={"attention_scale": {"folder": "attention_multiplier"}},
    folder_defaults={"norm_eps": 1e-6, "attention_scale": 1.0},
)
