"""Cohere 2: Command R7B and A (Cohere, 2024). Layer norms without bias, attention and feed-forward in
parallel, and windows in all layers but every fourth, which alone have no rotation.
"""

from airllm.architectures.declaration import Architecture, Norms, Rotary, Tiny, Window
from airllm.architectures.keys import identity

COHERE2 = Architecture(
    name="cohere2",
    title="Cohere 2: Command R7B and A",
    model_types=("cohere2",),
    norms=Norms(kind="layer", parallel=True),
    rotary=Rotary(neighbours=True, neighbours_in_folders=True, windowed_only=True),
    window=Window(default=4096, in_gguf=4096, all_but_every=4),
    tied=True,
    numbers=("logit_scale",),
    keys={
        "norm_eps": {"gguf": "attention.layer_norm_epsilon", "folder": "layer_norm_eps"},
        "logit_scale": {"folder": "logit_scale", "of_gguf": identity, "of_folder": identity},
    },
    folder_defaults={"norm_eps": 1e-5, "logit_scale": 0.0625},
    tiny={
        "cohere2": Tiny(
            {
                "num_hidden_layers": 5,
                "intermediate_size": 32,
                "layer_norm_eps": 1e-3,
                "logit_scale": 0.25,
                "sliding_window": 8,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            }
        ),
        "cohere2_listed": Tiny(
            {
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "num_hidden_layers": 2,
                "intermediate_size": 32,
                "sliding_window": 8,
                "attention_bias": True,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            },
            "float16",
            gguf=False,
        ),
    },
)
