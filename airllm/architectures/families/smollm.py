"""SmolLM3 (Hugging Face, 2025): Llama without rotation in every fourth layer. SmolLM 1 and 2 are Llama."""

from airllm.architectures.declaration import Rotary, Tiny, Window
from airllm.architectures.families.llama import LLAMA

SMOLLM3 = LLAMA.but(
    "smollm3",
    title="SmolLM3",
    model_types=("smollm3",),
    rotary=Rotary(theta=2e6, neighbours=True, none_every=4),
    window=Window(switch="use_sliding_window", nope_only=True, switched_by_list=True),
    tied=True,
    folder_defaults={"kv_heads": 4},
    tiny={
        "smollm3": Tiny(
            {
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "num_hidden_layers": 5,
                "intermediate_size": 32,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            }
        ),
        "smollm3_window": Tiny(
            {
                "num_attention_heads": 2,
                "num_hidden_layers": 3,
                "intermediate_size": 32,
                "attention_bias": True,
                "no_rope_layers": [0, 1, 0],
                "use_sliding_window": True,
                "sliding_window": 8,
            },
            "float16",
            gguf=False,
        ),
        "smollm3_listed": Tiny(
            {
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "no_rope_layers": [0, 1, 0],
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            "float16",
            gguf=False,
        ),
    },
)
