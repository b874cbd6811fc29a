"""Nemotron-H (NVIDIA, 2025), Nemotron Nano v2 and Nemotron 3: each layer is one thing, which is Mamba-2,
attention without positions, a feed-forward of squared ReLUs, or experts of such.

Steps of Mamba-2 have no limits, as config.json says by `time_step_limit`, and as in llama.cpp. transformers
5.23 raises those below `time_step_min`.
"""

from functools import partial
from typing import Any

from airllm.architectures.declaration import EXPERT_GROUPS, Architecture, Biases, Rotary, Tiny
from airllm.architectures.model_config import FEED_FORWARD, MIXER
from airllm.architectures.recurrent import Mamba2
from airllm.architectures.values import MOST_LAYERS, Values

_TYPE = "nemotron_h"
_PATTERN, _LISTED = "hybrid_override_pattern", "layers_block_type"
# The kinds of layers: the letters of a pattern, and their newer and older names in a list.
_MAMBA, _ATTENTION, _DENSE, _EXPERTS = _LETTERS = "M*-E"
_NAMES = {
    "linear_attention": _MAMBA,
    "mamba": _MAMBA,
    "full_attention": _ATTENTION,
    "attention": _ATTENTION,
    "mlp": _DENSE,
    "moe": _EXPERTS,
}


def _is_listed(values: Values) -> bool:
    """Whether the kinds of layers are listed. GGUF files have other keys instead."""
    return _LISTED in values or _PATTERN in values


def _kinds(values: Values) -> str:
    """The letter of each layer."""
    listed = values.get(_LISTED, (list,), expected := f"some of {', '.join(_NAMES)}", None)
    if listed is None:
        key, expected, letters = _PATTERN, f"some of the letters {_LETTERS}", values.text(_PATTERN)
    else:
        key = _LISTED
        letters = "".join(_NAMES.get(each, "?") if isinstance(each, str) else "?" for each in listed)
    if not 0 < len(letters) <= MOST_LAYERS or set(letters) - set(_LETTERS):
        raise values.error(key, f"has {len(letters)} items {values.raw(key)[:8]}", expected)
    return letters


def _layers(values: Values, key: str, default: Any) -> Any:
    """As many as are listed."""
    return len(_kinds(values)) if _is_listed(values) else values.whole(key, default, MOST_LAYERS)


def _are(kind: str, values: Values, layers: int) -> tuple[bool, ...]:
    """Which layers are of this kind."""
    return tuple(each == kind for each in _kinds(values))


def _halves(values: Values, layers: int) -> tuple[str, ...]:
    return tuple(MIXER if each in (_MAMBA, _ATTENTION) else FEED_FORWARD for each in _kinds(values))


def _mamba_layers(values: Values, layers: int) -> tuple[bool, ...]:
    values.one_of("mamba_hidden_act", "silu", known={"silu": "silu", "swish": "silu"})
    return _are(_MAMBA, values, layers)


def _has_experts(values: Values) -> bool:
    return _EXPERTS in _kinds(values)


def _width(values: Values, key: str, default: Any) -> Any:
    """Of dense layers. If there are none, it is that of an expert, as in GGUF files."""
    of_experts = _is_listed(values) and _DENSE not in _kinds(values)
    return values.whole("moe_intermediate_size" if of_experts else key)


_NO_BIAS = dict.fromkeys(("attention_bias", "use_bias", "mamba_proj_bias"), "false: products without biases")
_SIZES: dict[str, Any] = {
    "head_dim": 16,
    "ssm_state_size": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "layer_norm_epsilon": 1e-4,
}
_TINY_EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5,
}
NEMOTRON_H = Architecture(
    name="nemotron_h",
    title="Nemotron-H, Nemotron Nano v2",
    model_types=(_TYPE,),
    rotary=Rotary(none_every=1),
    biases=Biases(qkv=False, output=False),
    gated=False,
    recurrent=Mamba2,
    recurrent_layers=_mamba_layers,
    recurrent_in_folders=("log_decay",),
    halves=_halves,
    keys={
        "layers": {"check": _layers},
        "head_dim": {"folder": ("head_dim", "attention_head_dim")},
        "norm_eps": {"folder": "layer_norm_epsilon", "also": "attention.layer_norm_epsilon"},
        "activation": {"folder": "mlp_hidden_act", "check": partial(Values.one_of, known={"relu2": "relu2"})},
    },
    defaults={"activation": "relu2"},
    folder_defaults={"norm_eps": 1e-5},
    gguf_names={"feed_forward.norm": "attn_norm.weight"},
    folder_names={
        "token_embedding": "embeddings.weight",
        "output_norm": "norm_f.weight",
        "attention.norm": "norm.weight",
        "feed_forward.norm": "norm.weight",
        **{f"attention.{part}": f"mixer.{part}_proj.weight" for part in "qkv"},
        "attention.output": "mixer.o_proj.weight",
        "mamba.in": "mixer.in_proj.weight",
        "mamba.filter": "mixer.conv1d.weight",
        "mamba.filter_bias": "mixer.conv1d.bias",
        "mamba.step_bias": "mixer.dt_bias",
        "mamba.decay_log": "mixer.A_log",
        "mamba.skip": "mixer.D",
        "mamba.scale": "mixer.norm.weight",
        "mamba.output": "mixer.out_proj.weight",
        "feed_forward.up": "mixer.up_proj.weight",
        "feed_forward.down": "mixer.down_proj.weight",
        "feed_forward.up_bias": "mixer.up_proj.bias",
        "feed_forward.down_bias": "mixer.down_proj.bias",
    },
    refused=_NO_BIAS,
    tiny={
        "nemotron_h": Tiny(
            {
                **_SIZES,
                "rms_norm_eps": _SIZES["layer_norm_epsilon"],  # as the first of these models have both
                "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
                "mlp_bias": True,
            }
        ),
    },
)
NEMOTRON_H_MOE = NEMOTRON_H.but(
    "nemotron_h_moe",
    title="Nemotron 3 Nano and Super",
    model_types=(),
    marked_by=(_TYPE, _has_experts),
    biases=Biases(qkv=False, output=False, feed_forward=False, selection=True),
    experts=partial(_are, _EXPERTS),
    shared_gate=False,
    numbers=(
        "shared_experts",
        "shared_expert",
        "expert_latent",
        *EXPERT_GROUPS,
    ),
    keys={
        "feed_forward": {"check": _width},
        "shared_expert": {"folder": "moe_shared_expert_intermediate_size"},
    },
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={"expert_feed_forward": ..., "shared_expert": ...},
    folder_names={
        "experts.router": "mixer.gate.weight",
        "experts.selection_bias": "mixer.gate.e_score_correction_bias",
        "experts.latent_in": "mixer.fc1_latent_proj.weight",
        "experts.latent_out": "mixer.fc2_latent_proj.weight",
        "experts.up": "mixer.experts.{expert}.up_proj.weight",
        "experts.down": "mixer.experts.{expert}.down_proj.weight",
        "shared_expert.up": "mixer.shared_experts.up_proj.weight",
        "shared_expert.down": "mixer.shared_experts.down_proj.weight",
    },
    refused={**_NO_BIAS, "mlp_bias": "false: products without biases"},
    tiny={
        "nemotron_h_moe": Tiny(
            {
                **_SIZES,
                **_TINY_EXPERTS,
                "layers_block_type": ["moe", "full_attention", "linear_attention", "moe"],
                "moe_latent_size": 64,
            },
            model_type=_TYPE,
        ),
        "nemotron_h_mixed": Tiny(
            {
                **_SIZES,
                **_TINY_EXPERTS,
                "layers_block_type": ["full_attention", "mlp", "linear_attention", "moe"],
                "n_groups": 1,
                "n_group": 3,
                "topk_group": 2,
                "norm_topk_prob": False,
            },
            "float16",
            gguf=False,  # whose feed-forwards are all dense, or all have experts
            model_type=_TYPE,
        ),
    },
)
