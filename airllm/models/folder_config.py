"""The configuration of a model in a Hugging Face folder's config.json."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

from airllm.models.config import ModelConfig, Rope
from airllm.models.config_values import MOST, MOST_LAYERS, PATTERN, Values, checked, every, head_dim_of
from airllm.models.weights import read_json

_KEYS = {
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rope_dim": "partial_rotary_factor",
    "experts_used": "num_experts_per_tok",
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_HEAD_DIMS = {"qwen3": 128, "gemma2": 256, "gemma3": 256}  # where a file does not say
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}
# model_type -> architecture
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
    "phi3": "phi3",
}
_THETAS = {"mixtral": 1e6}
_SCALINGS = {each: each for each in ("default", "linear", "llama3", "yarn", "longrope")}
_PHI3_SCALINGS = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
_NUMBERS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}


def folder_config(folder: Path) -> ModelConfig:
    """The configuration in a folder's config.json."""
    path = folder / "config.json"
    whole = Values(path, read_json(path))
    if quantized := whole.get("quantization_config", (dict,), "an object", None):
        found = f"has quant_method {quantized.get('quant_method')!r}, which is not supported"
        wanted = "safetensors in float32, float16 or bfloat16; take a GGUF file for fewer bits"
        raise whole.error("quantization_config", found, wanted)
    kind = whole.text("model_type")
    if kind not in MODEL_TYPES:
        raise whole.error("model_type", f"has value {kind!r}", f"one of {', '.join(MODEL_TYPES)}")
    values = (_text_part(whole) if kind == "gemma3" else None) or whole
    name = MODEL_TYPES[kind]
    gemma = name.startswith("gemma")
    width, heads = values.whole("hidden_size"), values.whole("num_attention_heads")
    layers = values.whole("num_hidden_layers", most=MOST_LAYERS)
    head_dim = head_dim_of(values, "head_dim", width, heads, _HEAD_DIMS.get(name))
    if values.flag("mlp_bias", False):
        raise values.error("mlp_bias", "is true", "false: feed-forward biases are not known here")
    if values.flag("use_bidirectional_attention", False):
        raise values.error("use_bidirectional_attention", "is true", "false: a model that writes text")
    bias = values.flag("attention_bias", False)
    experts = _expert_fields(values, kind, layers)
    scale_of = values.number("query_pre_attn_scalar", 256) if gemma else head_dim
    rope, local_rope = _ropes(values, kind, head_dim)
    activation = "hidden_activation" if gemma else "hidden_act"
    config = ModelConfig(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=values.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        feed_forward=values.whole("intermediate_size"),
        vocabulary=values.whole("vocab_size"),
        context=values.whole("max_position_embeddings"),
        rope=rope,
        local_rope=local_rope,
        norm_eps=values.number("rms_norm_eps", 1e-6),
        activation=values.one_of(activation, _ACTIVATIONS, "gelu_pytorch_tanh" if gemma else "silu"),
        attention_scale=1 / sqrt(scale_of),
        windows=_windows(values, kind, layers),
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=sqrt(width) if gemma else 1.0,
        attention_softcap=_softcap(values, name, "attn_logit_softcapping", 50.0),
        logit_softcap=_softcap(values, name, "final_logit_softcapping", 30.0),
        qkv_bias=bias or name == "qwen2",
        output_bias=bias and name != "qwen2",
        qk_norm=name in ("qwen3", "qwen3moe", "gemma3"),
        post_norms=gemma,
        fused=name == "phi3",
        tied_embeddings=whole.flag("tie_word_embeddings", values.flag("tie_word_embeddings", gemma)),
        **experts,
    )
    return checked(values, _KEYS, config)


def _text_part(whole: Values) -> Values | None:
    """Of a model that also sees. What Google's files leave out there is what transformers fills in."""
    part = whole.below("text_config")
    if part is None:
        return None
    return Values(
        part.path, {f"{part.under}{k}": v for k, v in _GEMMA3.items()} | dict(part.values), part.under
    )


def _softcap(values: Values, name: str, key: str, default: float) -> float | None:
    return values.number(key, values.unless_null(key, default) if name == "gemma2" else None)


def _expert_fields(values: Values, kind: str, layers: int) -> dict[str, Any]:
    if kind == "mixtral":
        return {
            "experts": values.whole("num_local_experts"),
            "experts_used": values.whole("num_experts_per_tok"),
            "expert_feed_forward": values.whole("intermediate_size"),
            "moe_layers": (True,) * layers,
        }
    if kind != "qwen3_moe":
        return {}
    step = values.whole("decoder_sparse_step", 1)
    dense = values.get("mlp_only_layers", (list,), "a list of layers", [])
    key = "num_local_experts" if "num_local_experts" in values.values else "num_experts"  # newer, older files
    return {
        "experts": values.whole(key),
        "experts_used": values.whole("num_experts_per_tok"),
        "expert_feed_forward": values.whole("moe_intermediate_size"),
        "normalize_experts": values.flag("norm_topk_prob", False),
        "moe_layers": tuple(i not in dense and (i + 1) % step == 0 for i in range(layers)),
    }


def _windows(values: Values, kind: str, layers: int) -> tuple[int | None, ...]:
    qwen = kind.startswith("qwen")
    default = None if kind in ("phi3", "mixtral") else 4096
    window = values.whole("sliding_window", values.unless_null("sliding_window", default))
    if kind == "llama" or (qwen and not values.flag("use_sliding_window", False)):
        return (None,) * layers
    types = values.get("layer_types", (list,), "a list of texts", None)
    if types is not None and kind != "qwen3_moe":
        return _typed_windows(values, types, window, layers)
    if kind in ("qwen2", "qwen3"):
        first = values.get("max_window_layers", (int,), "a whole number", 28)
        return tuple(window if i >= first else None for i in range(layers))
    pattern = values.whole("sliding_window_pattern", values.whole("_sliding_window_pattern", 0))
    return every(pattern or PATTERN.get(MODEL_TYPES[kind], 0), window, layers)


def _typed_windows(
    values: Values, types: list[Any], window: int | None, layers: int
) -> tuple[int | None, ...]:
    known = {"full_attention": None, "sliding_attention": window}
    if len(types) != layers or any(type(each) is not str or each not in known for each in types):
        wanted = f"{layers} of {', '.join(known)}"
        raise values.error("layer_types", f"has {len(types)} items {sorted(set(map(str, types)))}", wanted)
    return tuple(known[each] for each in types)


def _ropes(values: Values, kind: str, head_dim: int) -> tuple[Rope, Rope | None]:
    """Of all layers, or of those without and with a window. Newer files have it all in `rope_parameters`."""
    new = values.below("rope_parameters")
    if kind == "phi3":
        return _rope(values, new, values.number("rope_theta", 1e4), head_dim, _PHI3_SCALINGS), None
    gemma3 = MODEL_TYPES[kind] == "gemma3"
    if not gemma3:
        return _rope(values, new, values.number("rope_theta", _THETAS.get(kind, 1e4)), head_dim), None
    both = values.get("rope_parameters", (dict,), "an object", {})
    parts = {each: _nested(values, both, each) for each in ("full_attention", "sliding_attention")}
    wide = _rope(values, parts["full_attention"], values.number("rope_theta", 1e6), head_dim)
    near = parts["sliding_attention"] or Values(values.path, {}, "rope_parameters.sliding_attention.")
    theta = values.number("rope_local_base_freq", 1e4)
    return wide, Rope(near.number("rope_theta", theta), wide.dim)


def _nested(values: Values, both: dict[str, Any], key: str) -> Values | None:
    inner = both.get(key)
    under = f"rope_parameters.{key}."
    if inner is not None and not isinstance(inner, dict):
        raise values.error(under.rstrip("."), f"has value {inner!r}", "an object")
    return Values(values.path, {under + k: v for k, v in inner.items()}, under) if inner else None


def _rope(
    values: Values, new: Values | None, theta: float, head_dim: int, scalings: dict[str, str] = _SCALINGS
) -> Rope:
    """`new`: an object of rope_parameters; without one, rope_theta and rope_scaling stand alone."""
    given = new or values.below("rope_scaling")
    part = values.number("partial_rotary_factor", 1.0)
    if given is None:
        return Rope(theta, _turned(head_dim, part))
    part = given.number("partial_rotary_factor", part)
    theta = given.number("rope_theta", theta)
    plain = {key.removeprefix(given.under): value for key, value in given.values.items()}
    kind = plain.get("rope_type", plain.get("type", "default"))
    if not isinstance(kind, str) or kind not in scalings:
        raise given.error("rope_type", f"has value {kind!r}", f"one of {', '.join(scalings)}")
    kind = scalings[kind]
    if kind == "default":
        return Rope(theta, _turned(head_dim, part))
    left_out = ("rope_theta", "partial_rotary_factor", "type")
    scaling = {key: value for key, value in plain.items() if key not in left_out} | {"rope_type": kind}
    if kind != "linear":
        length = values.whole("original_max_position_embeddings", values.whole("max_position_embeddings"))
        scaling.setdefault("original_max_position_embeddings", length)
    _check_scaling(given, kind, turned := _turned(head_dim, part))
    return Rope(theta, turned, scaling=scaling)


def _turned(head_dim: int, part: float) -> int:
    """How many values of a head a part of them is. `checked` refuses too many."""
    return int(min(head_dim * part, MOST))


def _check_scaling(given: Values, kind: str, turned: int) -> None:
    for key in _NUMBERS[kind]:
        given.number(key)
    for key in ("attention_factor", "original_max_position_embeddings", "beta_fast", "beta_slow"):
        given.number(key, None)
    for key in ("mscale", "mscale_all_dim"):
        if given.values.get(f"{given.under}{key}") != 0:  # which says that it has none
            given.number(key, None)
    if kind == "llama3" and given.number("low_freq_factor") >= (high := given.number("high_freq_factor")):
        raise given.error("low_freq_factor", "is too large", f"less than high_freq_factor, which is {high}")
    for key in ("short_factor", "long_factor") if kind == "longrope" else ():
        factors = given.get(key, (list,), wanted := f"{turned // 2} numbers above 0", ...)
        if len(factors) != turned // 2 or any(type(f) not in (int, float) or f <= 0 for f in factors):
            raise given.error(key, f"has {len(factors)} items", wanted)
