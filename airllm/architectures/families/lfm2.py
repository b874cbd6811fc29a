"""LFM2 and LFM2.5 (Liquid AI, 2025): most layers mix tokens by a gated short convolution, the others by
attention. A variant has experts, chosen by sigmoids with a bias.
"""

from typing import Any

from airllm.architectures.declaration import Architecture, Biases, Norms, Rotary, Tiny
from airllm.architectures.recurrent import ShortConv
from airllm.architectures.values import Values, kinds_of_layers

_CONV, _FULL = "conv", "full_attention"


def _conv_layers(values: Values, layers: int) -> tuple[bool, ...]:
    """Which layers have a convolution: config.json lists all layers, or those with attention."""
    if kinds := kinds_of_layers(values, (_CONV, _FULL), layers):
        return tuple(each == _CONV for each in kinds)
    full = values.get("full_attn_idxs", (list,), "a list", None)
    return tuple(full is not None and layer not in full for layer in range(layers))


def _feed_forward(values: Values, key: str, default: Any) -> Any:
    """The width of the feed-forward, which config.json may give as that of one without a gate."""
    if key not in ("block_ff_dim", "intermediate_size"):
        return values.whole(key, default)
    found = values.whole(key)
    if not values.flag("block_auto_adjust_ff_dim", True):
        return found
    factor, step = values.number("block_ffn_dim_multiplier", 1.0), values.whole("block_multiple_of", 256)
    return -(-int(factor * int(2 * found / 3)) // step) * step


def _all_but_first(values: Values, layers: int) -> tuple[bool, ...]:
    dense = values.whole("num_dense_layers", 2, layers, least=0)
    return tuple(layer >= dense for layer in range(layers))


LFM2 = Architecture(
    name="lfm2",
    title="LFM2, LFM2.5",
    model_types=("lfm2",),
    norms=Norms(q_and_k="head"),
    rotary=Rotary(theta=1e6),
    biases=Biases(qkv=False, output=False, feed_forward=False),
    tied=True,
    recurrent=ShortConv,
    recurrent_layers=_conv_layers,
    keys={
        "norm_eps": {"folder": "norm_eps"},
        "feed_forward": {"folder": ("block_ff_dim", "intermediate_size"), "check": _feed_forward},
    },
    folder_defaults={"norm_eps": 1e-5},
    gguf_names={"output_norm": "token_embd_norm.weight"},
    folder_names={
        "output_norm": "embedding_norm.weight",
        "attention.norm": "operator_norm.weight",
        "attention.q_norm": "self_attn.q_layernorm.weight",
        "attention.k_norm": "self_attn.k_layernorm.weight",
        "attention.output": "self_attn.out_proj.weight",
        "feed_forward.norm": "ffn_norm.weight",
        "feed_forward.gate": "feed_forward.w1.weight",
        "feed_forward.up": "feed_forward.w3.weight",
        "feed_forward.down": "feed_forward.w2.weight",
    },
    refused={"conv_bias": "false: convolutions without biases"},
    renamed={"tie_embedding": "tie_word_embeddings"},
    tiny={
        "lfm2": Tiny(
            {
                "layer_types": [_CONV, _FULL, _CONV],
                "norm_eps": 1e-4,
                "intermediate_size": 96,
                "block_multiple_of": 32,
                "conv_L_cache": 4,
                "tie_word_embeddings": True,
            }
        ),
    },
)
LFM2_MOE = LFM2.but(
    "lfm2moe",
    title="LFM2 with experts",
    model_types=("lfm2_moe",),
    biases=Biases(qkv=False, output=False, feed_forward=False, selection=("use_expert_bias", True)),
    experts=_all_but_first,
    numbers=("dense_layers", "expert_scores", "expert_scale"),
    keys={
        "feed_forward": {"folder": "intermediate_size", "check": Values.whole},
        "dense_layers": {"folder": "num_dense_layers"},
    },
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={"dense_layers": 2, "expert_feed_forward": ...},
    folder_names={
        "experts.router": "feed_forward.gate.weight",
        "experts.selection_bias": "feed_forward.expert_bias",
        "experts.gate": "feed_forward.experts.{expert}.w1.weight",
        "experts.up": "feed_forward.experts.{expert}.w3.weight",
        "experts.down": "feed_forward.experts.{expert}.w2.weight",
    },
    tiny={
        "lfm2_moe": Tiny(
            {
                "layer_types": [_CONV, _FULL, _CONV],
                "norm_eps": 1e-4,
                "num_dense_layers": 1,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "routed_scaling_factor": 1.5,
                "tie_word_embeddings": True,
            },
            "float16",
        ),
    },
)
