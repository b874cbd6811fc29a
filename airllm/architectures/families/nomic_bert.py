"""Nomic BERT (Nussbaum et al., 2024): BERT with rotary positions, a gated feed-forward, and biases of norms
alone. config.json has the keys of GPT-2, or those of transformers.
"""

from airllm.architectures.declaration import REMOVED, Biases, Encoder, Rotary, Tiny
from airllm.architectures.families.bert import BERT, BERT_SIZES

_NO_BIAS = "false: matrices without biases"

NOMIC_BERT = BERT.but(
    "nomic-bert",
    title="Nomic BERT",
    model_types=("nomic_bert",),
    rotary=Rotary(theta=1000.0),
    biases=Biases(qkv=False, output=False, feed_forward=False),
    encoder=Encoder(token_types=True, embedding_norm=True, sum_norms=True, fused_qkv=True),
    gated=True,
    defaults={"activation": "silu"},
    renamed={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "max_trained_positions": "max_position_embeddings",  # n_positions is for angles that are scaled
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
        "rotary_emb_fraction": "partial_rotary_factor",
    },
    folder_layers="encoder.layers",
    folder_names={
        **dict.fromkeys(BERT.folder_names, REMOVED),
        "token_embedding": "embeddings.word_embeddings.weight",
        "embedding_norm": "emb_ln.weight",
        "embedding_norm_bias": "emb_ln.bias",
        "attention.qkv": "attn.Wqkv.weight",
        "attention.output": "attn.out_proj.weight",
        "attention.post_norm": "norm1.weight",
        "attention.post_norm_bias": "norm1.bias",
        "feed_forward.up": "mlp.fc11.weight",
        "feed_forward.gate": "mlp.fc12.weight",
        "feed_forward.down": "mlp.fc2.weight",
        "feed_forward.post_norm": "norm2.weight",
        "feed_forward.post_norm_bias": "norm2.bias",
    },
    refused={
        "qkv_proj_bias": _NO_BIAS,
        "mlp_fc1_bias": _NO_BIAS,
        "mlp_fc2_bias": _NO_BIAS,
        "prenorm": "false: norms after attention and feed-forward",
        "use_rms_norm": "false: layer norms",
        "rotary_emb_interleaved": "false: pairs of values that are half a head apart",
    },
    tiny={"nomic_bert": Tiny({**BERT_SIZES})},
)
