"""Reads and writes the keys of files for rotary positions and for queries scaled by position."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from airllm.architectures.declaration import Architecture, Rotary
from airllm.architectures.layer_spec import QueryTemperature, Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import MOST, Values
from airllm.architectures.windows import Windows
from airllm.files.weight_file import ModelFileError
from airllm.ops.rope_scaling import longrope_attention_factor

ROPE_DIM = {"gguf": "rope.dimension_count", "folder": "partial_rotary_factor"}
LENGTH = "original_max_position_embeddings"
_FACTORS = "rope_factors_"
_SECTIONS = "rope.dimension_sections"
_ORIGINAL = "rope.scaling.original_context_length"
_OPTIONAL = "rope.scaling.finetuned"  # false: no rotation
_NEAR_DIM = "rope.dimension_count_swa"  # of layers with a window
_TEMPERATURE = "llama_4_scaling_beta"
_SCALE, _TEMPERATURE_LENGTH = "attention.temperature_scale", "attention.temperature_length"
# The fields of a scaling in GGUF files, after rope.scaling., and those that a file must have.
_GGUF_NAMES = {
    "linear": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "attention_factor": "yarn_attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
        "mscale_all_dim": "yarn_log_multiplier",  # with an mscale of 1
    },
    "longrope": {"attention_factor": "attn_factor"},
}
_REQUIRED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}
_UNSCALED = Rotary(scalings={"default": "default"})
_NO_NUMBERS_OF_SCALING = ("rope_theta", "partial_rotary_factor", "type", _TEMPERATURE)


def drop_unused(ropes: dict[str, Any], windows: Windows) -> dict[str, Any]:
    """The same fields, without a local rotation that no layer uses or that equals the other."""
    unused = not any(windows) or ropes.get("local_rope") == ropes["rope"]
    return {name: value for name, value in ropes.items() if name != "local_rope" or not unused}


def nope_beside_windows(architecture: Architecture, windows: Windows) -> dict[str, Any]:
    """The field of ModelConfig for layers without rotation, if those are the layers without a window."""
    if not architecture.rotary.windowed_only:
        return {}
    return {"nope_layers": tuple(not window for window in windows)}


# ------------------------------------------------------------------------------------------- config.json


def folder_ropes(
    architecture: Architecture, values: Values, head_dim: int, near_dim: int, layers: int
) -> dict[str, Any]:
    """The fields of ModelConfig for positions. Newer files have all of them in `rope_parameters`. A head has
    `near_dim` values in layers with a window.
    """
    rule = architecture.rotary
    new = values.below("rope_parameters")
    theta = values.number("rope_theta", rule.theta)
    given: Values | None
    if rule.local_theta is None and not rule.local_unscaled:
        given = new or values.below("rope_scaling")
        found: dict[str, Any] = {"rope": _folder_rope(values, given, theta, head_dim, rule)}
    else:
        found = _two_folder_ropes(values, new, theta, (head_dim, near_dim), rule)
        given = None
    if rule.neighbours_in_folders:
        found = {name: replace(rope, interleaved=True) for name, rope in found.items()}
    if given and (sections := given.get("mrope_section", (list,), "whole numbers", None)):
        found["rope_sections"] = _sections(given, "mrope_section", sections)
    if rule.none_every:
        found["nope_layers"] = _folder_nope(values, rule, layers)
    if rule.optional and values.text("position_embedding_type", None) != "rope":
        found["nope_layers"] = (True,) * layers
    if rule.temperature:
        found["query_temperature"] = _folder_temperature(values, given)
    if rule.nope_temperature and values.raw("attn_temperature_tuning") not in (False, 0):
        scale, length = rule.nope_temperature
        given_scale, given_length = values.number("attn_scale", scale), values.whole("floor_scale", length)
        found["query_temperature"] = _nope_temperature(given_scale, given_length)
    return found


def _sections(values: Values, key: str, found: Iterable[Any]) -> tuple[int, ...]:
    """How many pairs rotate by each axis. GGUF files have a fourth number, which is 0."""
    sections = [each if isinstance(each, int) else -1 for each in found]
    if len(sections) > 4 or any(not 0 <= each <= MOST for each in sections):
        raise values.error(key, f"has value {sections}", "at most 4 whole numbers")
    return tuple(each for each in sections if each)


def _two_folder_ropes(
    values: Values, new: Values | None, theta: float, dims: tuple[int, int], rule: Rotary
) -> dict[str, Any]:
    """The rotations of layers without and with a window. `new` has an object for each, or is one for both."""
    wide, near = (new and new.below(each) for each in ("full_attention", "sliding_attention"))
    rope = _folder_rope(
        values, wide or (None if near else new) or values.below("rope_scaling"), theta, dims[0], rule
    )
    theta = values.number("rope_local_base_freq", rule.local_theta or rope.theta)
    local = _folder_rope(values, near, theta, dims[1], _UNSCALED) if near else Rope(theta, rope.dim)
    return {"rope": rope, "local_rope": local}


def _folder_rope(values: Values, given: Values | None, theta: float, head_dim: int, rule: Rotary) -> Rope:
    """The rotation in `given`, an object of rope_parameters or rope_scaling. Without one, only rope_theta."""
    dim = values.whole("rotary_dim", None)
    part = values.number("partial_rotary_factor", dim / head_dim if dim else rule.part)
    if given is None:
        return Rope(theta, _rotated_count(head_dim, part))
    rotated = _rotated_count(head_dim, given.number("partial_rotary_factor", part))
    theta = given.number("rope_theta", theta)
    said = (given.raw(key) for key in ("rope_type", "type"))
    kind = next((each for each in said if each is not None), "default")
    if not isinstance(kind, str) or kind not in rule.scalings:
        raise given.error("rope_type", f"has value {kind!r}", f"one of {', '.join(rule.scalings)}")
    kind = rule.scalings[kind]
    if kind == "alpha":  # longer wavelengths, the same for texts of any length (Hunyuan)
        return Rope(theta * given.number("alpha") ** (rotated / (rotated - 2)), rotated)
    if kind == "default":
        return Rope(theta, rotated)
    if kind == "proportional":  # all pairs have the angles of a whole head, but only some rotate
        part = given.number("partial_rotary_factor", 1.0)
        return Rope(theta, head_dim, scaling={"rope_type": kind, "partial_rotary_factor": part})
    plain = {key.removeprefix(given.under): value for key, value in given.values.items()}
    scaling = {key: value for key, value in plain.items() if key not in _NO_NUMBERS_OF_SCALING}
    scaling["rope_type"] = kind
    if kind != "linear" and scaling.get(LENGTH) is None:
        scaling[LENGTH] = values.whole(LENGTH, values.whole("max_position_embeddings"))
    _check_scaling(given, kind, rotated)
    return Rope(theta, rotated, scaling=scaling)


def _rotated_count(head_dim: int, part: float) -> int:
    """How many values of a head are rotated. `check_config` refuses too many."""
    return int(min(head_dim * part, MOST))


def _check_scaling(given: Values, kind: str, rotated: int) -> None:
    for key in _REQUIRED[kind]:
        given.number(key)
    for key in ("attention_factor", LENGTH, "beta_fast", "beta_slow"):
        given.number(key, None)
    given.flag("truncate", True)
    for key in ("mscale", "mscale_all_dim"):
        if not given.is_zero(key):
            given.number(key, None)
    if kind == "llama3" and given.number("low_freq_factor") > (high := given.number("high_freq_factor")):
        raise given.error("low_freq_factor", "is too large", f"at most high_freq_factor, which is {high}")
    for key in ("short_factor", "long_factor") if kind == "longrope" else ():
        factors = given.get(key, (list,), expected := f"{rotated // 2} numbers above 0", ...)
        if len(factors) != rotated // 2 or any(type(f) not in (int, float) or f <= 0 for f in factors):
            raise given.error(key, f"has {len(factors)} items", expected)


def _folder_nope(values: Values, rule: Rotary, layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` has a 1 for each layer *with* rotation, despite its name."""
    rotated = values.get("no_rope_layers", (list,), expected := f"{layers} of 0 and 1", None)
    if not rotated:
        return _none_every(values.whole("no_rope_layer_interval", rule.none_every), layers)
    if len(rotated) < layers or any(each not in (0, 1) for each in rotated):
        raise values.error("no_rope_layers", f"has {len(rotated)} items", expected)
    return tuple(not each for each in rotated[:layers])


def _none_every(every: int, layers: int) -> tuple[bool, ...]:
    return tuple((i + 1) % every == 0 for i in range(layers))


def _nope_temperature(scale: float, length: int) -> QueryTemperature:
    return QueryTemperature(scale, length, offset=1, nope_only=True)


def _folder_temperature(values: Values, given: Values | None) -> QueryTemperature | None:
    if given is None or (scale := given.number(_TEMPERATURE, None)) is None:
        return None
    return QueryTemperature(scale, given.whole(LENGTH, values.whole("max_position_embeddings")))


# -------------------------------------------------------------------------------------------------- GGUF


def gguf_ropes(
    architecture: Architecture,
    values: Values,
    tensors: Container[str],
    head_dim: int,
    near_dim: int,
    layers: int,
) -> dict[str, Any]:
    """The fields of ModelConfig for positions. A head has `near_dim` values in layers with a window."""
    rule = architecture.rotary
    dim = values.whole(ROPE_DIM["gguf"], head_dim)
    theta = values.number("rope.freq_base", rule.theta)
    scaling = _gguf_scaling(values, tensors, rule)
    if scaling and scaling["rope_type"] == "yarn" and not rule.yarn_truncates:
        scaling["truncate"] = False
    found: dict[str, Any] = {"rope": Rope(theta, dim, interleaved=rule.neighbours, scaling=scaling)}
    if rule.local_theta is not None or rule.local_unscaled:
        local = values.number("rope.freq_base_swa", rule.local_theta or theta)
        near = dim if near_dim == head_dim else near_dim
        found["local_rope"] = Rope(local, values.whole(_NEAR_DIM, near), interleaved=rule.neighbours)
    if isinstance(sections := values.raw(_SECTIONS), np.ndarray):
        found["rope_sections"] = _sections(values, _SECTIONS, sections.tolist())
    if rule.none_every:
        found["nope_layers"] = _none_every(rule.none_every, layers)
    if rule.optional and not values.flag(_OPTIONAL, True):
        found["nope_layers"] = (True,) * layers
    if rule.nope_temperature:
        scale, length = rule.nope_temperature
        scale, length = values.number(_SCALE, scale), values.whole(_TEMPERATURE_LENGTH, length)
        found["query_temperature"] = _nope_temperature(scale, length)
    if rule.temperature and (scale := values.number(_SCALE, None)) is not None:
        length = values.whole(_ORIGINAL, values.whole("context_length"))
        found["query_temperature"] = QueryTemperature(scale, values.whole(_TEMPERATURE_LENGTH, length))
    return found


def _gguf_scaling(values: Values, tensors: Container[str], rule: Rotary) -> dict[str, Any] | None:
    """The scaling in config.json's terms. The factors of Llama 3 and Phi-3 are tensors, not keys."""
    known = {"none": None} | {each: each for each in _GGUF_NAMES}
    kind = values.one_of("rope.scaling.type", known[_implied_scaling(values, tensors)], known=known)
    if kind is None:
        return None
    if kind == "longrope":
        _check_factors(values, tensors)
    found: dict[str, Any] = {"rope_type": kind}
    for ours, theirs in _GGUF_NAMES[kind].items():
        name, required = f"rope.scaling.{theirs}", ours in _REQUIRED[kind]
        if values.is_zero(name) and not required:
            continue
        if (value := values.number(name, ... if required else None)) is not None:
            found[ours] = value
    if "mscale_all_dim" in found:
        found["mscale_all_dim"] /= rule.log_multiplier
        found["mscale"] = found["mscale_all_dim"] if rule.one_mscale else 1.0
    if kind != "linear":
        length = values.whole(_ORIGINAL, values.whole("context_length"))
        found[LENGTH] = length
    return found


def _implied_scaling(values: Values, tensors: Container[str]) -> str:
    """The scaling if the file has no rope.scaling.type, which converters do not write for Phi-3."""
    if f"{_FACTORS}long.weight" in tensors:
        return "longrope"
    return "linear" if "rope.scaling.factor" in values else "none"


def _check_factors(values: Values, tensors: Container[str]) -> None:
    for side in ("short", "long"):
        if (name := f"{_FACTORS}{side}.weight") not in tensors:
            expected = f"the factors of {values.under}rope.scaling.type longrope"
            raise ModelFileError(values.path, f"tensor {name}", "is missing", expected)


def write_ropes(architecture: Architecture, config: ModelConfig) -> dict[str, Any]:
    """The keys of a model's positions. The factors of Llama 3 and of longrope are tensors."""
    found: dict[str, Any] = {"rope.freq_base": config.rope.theta, ROPE_DIM["gguf"]: config.rope.dim}
    if config.local_rope or architecture.rotary.local_theta:  # without it, a reader uses local_theta
        found["rope.freq_base_swa"] = (config.local_rope or config.rope).theta
    if config.local_rope and config.local_rope.dim != config.rope.dim:
        found[_NEAR_DIM] = config.local_rope.dim
    if architecture.rotary.optional:
        found[_OPTIONAL] = not any(config.nope_layers)
    if config.rope_sections:
        found[_SECTIONS] = [*config.rope_sections, 0, 0, 0, 0][:4]
    if config.query_temperature:
        found[_SCALE] = config.query_temperature.scale
        own = config.query_temperature.nope_only or architecture.latent
        key = _TEMPERATURE_LENGTH if own else _ORIGINAL
        found[key] = config.query_temperature.length
    scaling = dict(config.rope.scaling or {})
    if (kind := scaling.get("rope_type")) not in _GGUF_NAMES:
        return found
    if kind == "longrope":
        scaling["attention_factor"] = longrope_attention_factor(scaling, config.context)
    given: dict[str, Any] = {"type": kind}
    for ours, theirs in _GGUF_NAMES[kind].items():
        if scaling.get(ours):
            by = architecture.rotary.log_multiplier if ours == "mscale_all_dim" else 1
            given[theirs] = by * float(scaling[ours])
    if kind != "linear":
        given["original_context_length"] = int(scaling[LENGTH])
    return found | {f"rope.scaling.{name}": value for name, value in given.items()}
