"""Llama 1 to 3 (Touvron et al., 2023; Grattafiori et al., 2024), SmolLM 1 and 2, and models like them."""

from airllm.architectures.declaration import Architecture, Rotary, Tiny

_ROPE3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA = Architecture(
    name="llama",
    title="Llama 1 to 3, SmolLM 1 and 2",
    model_types=("llama",),
    rotary=Rotary(neighbours=True),
    folder_defaults={"norm_eps": 1e-6},
    tiny={
        "llama2": Tiny({"num_attention_heads": 2, "num_hidden_layers": 2}, "float32"),
        "llama3": Tiny({"head_dim": 16, "rope_parameters": _ROPE3}),
        "llama_linear": Tiny(
            {
                "head_dim": 32,
                "num_hidden_layers": 2,
                "attention_bias": True,
                "mlp_bias": True,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
            },
            "float16",
        ),
        "smollm2": Tiny(
            {
                "hidden_size": 64,
                "tie_word_embeddings": True,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
            }
        ),
    },
)
