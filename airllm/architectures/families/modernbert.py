"""ModernBERT (Warner et al., 2024): norms before attention and feed-forward, a gated feed-forward, rotary
positions, and in two of three layers attention to the neighbourhood alone.
"""

from airllm.architectures.declaration import Architecture, Encoder, Norms, Rotary, Tiny, Window
from airllm.architectures.families.bert import BERT_SIZES

_NO_BIAS = "false: no biases"

MODERNBERT = Architecture(
    name="modern-bert",
    title="ModernBERT",
    model_types=("modernbert",),
    norms=Norms(kind="layer"),
    rotary=Rotary(theta=160_000.0, local_theta=10_000.0),
    window=Window(default=128, all_but_every=3, full_first=True),
    encoder=Encoder(embedding_norm=True, bare_first=True),
    fused=True,
    tied=True,
    keys={
        "norm_eps": {"gguf": "attention.layer_norm_epsilon", "folder": "norm_eps"},
        "activation": {"folder": "hidden_activation"},
    },
    defaults={"activation": "gelu"},
    folder_defaults={"norm_eps": 1e-5},
    renamed={
        "global_rope_theta": "rope_theta",
        "local_rope_theta": "rope_local_base_freq",
        "local_attention": "sliding_window",
        "global_attn_every_n_layers": "sliding_window_pattern",
    },
    folder_names={
        "token_embedding": "embeddings.tok_embeddings.weight",
        "embedding_norm": "embeddings.norm.weight",
        "output_norm": "final_norm.weight",
        "attention.norm": "attn_norm.weight",
        "attention.qkv": "attn.Wqkv.weight",
        "attention.output": "attn.Wo.weight",
        "feed_forward.norm": "mlp_norm.weight",
        "feed_forward.gate_up": "mlp.Wi.weight",
        "feed_forward.down": "mlp.Wo.weight",
    },
    refused={"norm_bias": _NO_BIAS, "attention_bias": _NO_BIAS, "mlp_bias": _NO_BIAS},
    tiny={
        "modernbert": Tiny(
            {
                **BERT_SIZES,
                "num_hidden_layers": 4,
                "local_attention": 12,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                },
                **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
                **dict.fromkeys(("cls_token_id", "sep_token_id"), 0),
            }
        )
    },
)
