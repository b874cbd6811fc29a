"""Mistral (Jiang et al., 2023), Mixtral (Jiang et al., 2024), Ministral 3 and Mistral Small 4. The first two
are "llama" in GGUF files; the last has the latent attention of DeepSeek-V3.
"""

from dataclasses import replace

from airllm.architectures.declaration import Biases, Rotary, Stacks, Tiny, Window
from airllm.architectures.families.deepseek import DEEPSEEK3, TINY_LATENT_GROUPS, TINY_YARN, all_but_first
from airllm.architectures.families.llama import LLAMA
from airllm.architectures.values import every_layer

_YARN = {
    **TINY_YARN,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
_PIXTRAL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 1,
    "head_dim": 16,
    "patch_size": 2,
    "image_size": 8,
}
MISTRAL = LLAMA.but(
    title="Mistral 7B, Nemo, Small 3",
    model_types=("mistral",),
    parts_of=("mistral3",),
    window=Window(default=4096),
    tiny={
        "mistral": Tiny({"head_dim": 16, "sliding_window": 8}, "float16"),
    },
)


MIXTRAL = MISTRAL.but(
    title="Mixtral",
    model_types=("mixtral",),
    rotary=Rotary(theta=1e6, neighbours=True),
    window=Window(),
    experts=every_layer,
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
        ),
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
    tiny={
        "ministral3": Tiny(
            {"head_dim": 16, "num_hidden_layers": 2, "tie_word_embeddings": True, "rope_parameters": _YARN}
        ),
        "mistral3": Tiny(
            {
                "text_config": {
                    "model_type": "ministral3",
                    "head_dim": 16,
                    "num_hidden_layers": 2,
                    "rope_parameters": {**_YARN, "mscale_all_dim": 0.5},
                },
                "vision_config": _PIXTRAL,
            },
            model_type="mistral3",
        ),
        "mistral_small": Tiny(
            {
                "text_config": {
                    "model_type": "mistral",
                    "head_dim": 16,
                    "num_hidden_layers": 2,
                    "sliding_window": None,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
                },
                "vision_config": _PIXTRAL,
            },
            "float16",
            model_type="mistral3",
        ),
    },
)
MISTRAL4 = DEEPSEEK3.but(
    "mistral4",
    title="Mistral Small 4",
    model_types=("mistral4",),
    parts_of=("mistral3",),
    biases=Biases(),
    rotary=replace(DEEPSEEK3.rotary, one_mscale=False),
    experts=all_but_first,
    folder_stacks=Stacks(fused=True),
    gguf_stacks=Stacks(fused=True),
    defaults={"expert_scores": "", "expert_group_best": 2},
    folder_defaults={"dense_layers": 0},
    gguf_names={"experts.gate": "ffn_gate_up_exps.weight", "experts.up": "ffn_gate_up_exps.weight"},
    folder_names={
        "experts.gate": "mlp.experts.gate_up_proj",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    },
    tiny={
        "mistral_small4": Tiny(
            {
                "text_config": {
                    **TINY_LATENT_GROUPS,
                    "model_type": "mistral4",
                    "first_k_dense_replace": 0,
                    "rope_parameters": _YARN,
                },
                "vision_config": _PIXTRAL,
            },
            "float16",
            model_type="mistral3",
        ),
    },
)
