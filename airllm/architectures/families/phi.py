"""Phi-3 (Abdin et al., 2024), Phi-3.5 and Phi-4: q, k and v are one stored matrix, and so are gate and up."""

from airllm.architectures.declaration import Architecture, Biases, Rotary, Tiny, Window

_SCALINGS = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
_SHORT = 24  # tokens of a short text in the tests; a longer one uses the angles of long texts
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "original_max_position_embeddings": _SHORT,
    "short_factor": [1.0, 1.5, 1.0, 1.25, 2.0, 1.0],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
    "partial_rotary_factor": 0.75,
}
PHI3 = Architecture(
    name="phi3",
    title="Phi 3 to 4",
    model_types=("phi3",),
    rotary=Rotary(scalings=_SCALINGS),
    window=Window(),
    biases=Biases(),
    fused=True,
    stripped_names=("phi-3", "phi3"),  # its templates have newlines there that it was not trained with
    folder_defaults={"norm_eps": 1e-6},
    tiny={
        "phi3": Tiny(
            {
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "sliding_window": 12,
                "num_hidden_layers": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            }
        ),
        "phi3_long": Tiny(
            {
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "original_max_position_embeddings": _SHORT,
                "rope_parameters": _LONGROPE,
            },
            "float16",
        ),
    },
)
