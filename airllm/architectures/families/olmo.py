"""OLMo 2 (Walsh et al., 2025): norms after attention and feed-forward only, and of whole rows of q and k.
OLMo 3 also has windows. GGUF files call both olmo2.
"""

from airllm.architectures.declaration import Architecture, Norms, Rotary, Tiny, Window

OLMO2 = Architecture(
    name="olmo2",
    title="OLMo 2",
    model_types=("olmo2",),
    norms=Norms(before=False, after=True, q_and_k="row"),
    rotary=Rotary(local_unscaled=True),
    window=Window(all_but_every=4),  # for GGUF files of OLMo 3, which have this name
    folder_defaults={"norm_eps": 1e-5},
    tiny={
        "olmo2": Tiny(
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            }
        ),
    },
)
OLMO3 = OLMO2.but(
    title="OLMo 3",
    model_types=("olmo3",),
    rotary=Rotary(theta=5e5, local_unscaled=True),
    window=Window(default=4096, all_but_every=4),
    tiny={
        "olmo3": Tiny(
            {
                "num_hidden_layers": 4,
                "intermediate_size": 32,
                "sliding_window": 8,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 1000.0,
                        "factor": 4.0,
                        "original_max_position_embeddings": 32,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                },
            },
            "float16",
        ),
    },
)
