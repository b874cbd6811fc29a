"""BERT (Devlin et al., 2019) as an encoder of texts: MiniLM, BGE, E5, mxbai and many others. A table of
positions, a type for each token, and norms after attention and feed-forward.
"""

from airllm.architectures.declaration import Architecture, Biases, Encoder, Norms, Rotary, Tiny

BERT_SIZES = {
    "vocab_size": 80,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}

BERT = Architecture(
    name="bert",
    title="BERT",
    model_types=("bert",),
    norms=Norms(before=False, after=True, kind="layer", bias=True),
    rotary=Rotary(none_every=1),
    biases=Biases(qkv=True, output=True, feed_forward=True),
    encoder=Encoder(positions=True, token_types=True, embedding_norm=True, sum_norms=True),
    gated=False,
    tied=True,
    keys={"norm_eps": {"gguf": "attention.layer_norm_epsilon", "folder": "layer_norm_eps"}},
    defaults={"activation": "gelu"},
    folder_defaults={"norm_eps": 1e-12},
    gguf_names={
        "attention.post_norm": "attn_output_norm.weight",
        "feed_forward.post_norm": "layer_output_norm.weight",
    },
    folder_layers="encoder.layer",
    folder_names={
        "token_embedding": "embeddings.word_embeddings.weight",
        "attention.q": "attention.self.query.weight",
        "attention.k": "attention.self.key.weight",
        "attention.v": "attention.self.value.weight",
        "attention.q_bias": "attention.self.query.bias",
        "attention.k_bias": "attention.self.key.bias",
        "attention.v_bias": "attention.self.value.bias",
        "attention.output": "attention.output.dense.weight",
        "attention.output_bias": "attention.output.dense.bias",
        "attention.post_norm": "attention.output.LayerNorm.weight",
        "attention.post_norm_bias": "attention.output.LayerNorm.bias",
        "feed_forward.up": "intermediate.dense.weight",
        "feed_forward.up_bias": "intermediate.dense.bias",
        "feed_forward.down": "output.dense.weight",
        "feed_forward.down_bias": "output.dense.bias",
        "feed_forward.post_norm": "output.LayerNorm.weight",
        "feed_forward.post_norm_bias": "output.LayerNorm.bias",
    },
    refused={"is_decoder": "false: an encoder"},
    tiny={"bert": Tiny({**BERT_SIZES}, "float16")},
)
