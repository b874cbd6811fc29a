"""MiniMax-M2 (MiniMax, 2025): experts chosen by sigmoids with a bias; norms of whole rows of q and k."""

from airllm.architectures.declaration import Architecture, Biases, Norms, Rotary, Tiny
from airllm.architectures.keys import number_of
from airllm.architectures.values import every_layer

MINIMAX_M2 = Architecture(
    name="minimax-m2",
    title="MiniMax-M2",
    model_types=("minimax_m2",),
    norms=Norms(q_and_k="row"),
    rotary=Rotary(theta=5e6),
    biases=Biases(qkv=False, output=False, selection=True),
    experts=every_layer,
    numbers=("expert_scores",),
    keys={
        "expert_feed_forward": {"folder": "intermediate_size", "default": number_of("feed_forward")},
        "normalize_experts": {"gguf": "", "folder": ""},
    },
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={"head_dim": 128, "norm_eps": 1e-6},
    folder_names={
        "experts.router": "block_sparse_moe.gate.weight",
        "experts.selection_bias": "block_sparse_moe.e_score_correction_bias",
        "experts.gate": "block_sparse_moe.experts.{expert}.w1.weight",
        "experts.up": "block_sparse_moe.experts.{expert}.w3.weight",
        "experts.down": "block_sparse_moe.experts.{expert}.w2.weight",
    },
    tiny={
        "minimax_m2": Tiny(
            {
                "head_dim": 16,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.5,
                },
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
            }
        ),
    },
)
