"""SmolLM3 (Hugging Face, 2025): Llama without a rotation in every fourth layer. SmolLM 1 and 2 are Llama."""

from airllm.architectures.declaration import Rotary, Window
from airllm.architectures.llama import LLAMA

SMOLLM3 = LLAMA.but(
    "smollm3",
    title="SmolLM3",
    model_types=("smollm3",),
    rotary=Rotary(theta=2e6, neighbours=True, none_every=4),
    window=Window(switch="use_sliding_window", nope_only=True),
    tied=True,
    folder_defaults={"norm_eps": 1e-6, "kv_heads": 4},
)
