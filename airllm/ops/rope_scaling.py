"""Rotary position embeddings: angles, and the scaling methods for longer contexts."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def frequencies(dim: int, theta: float, scaling: dict[str, Any] | None) -> tuple[np.ndarray, float]:
    """Radians per position for each of dim / 2 pairs, and the factor on cosine and sine (float64).

    `scaling` is a checkpoint's `rope_scaling`. Raises ValueError for an unknown type or a missing key.
    """
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    kind = "default" if not scaling else scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _SCALED:
        raise ValueError(f"rope_table: scaling has rope_type {kind!r}, expected {', '.join(_SCALED)}")
    try:
        return _SCALED[kind](plain, theta, scaling or {})
    except KeyError as missing:
        raise ValueError(f"rope_table: scaling of rope_type {kind!r} has no key {missing}") from None


def _default(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    return plain, 1.0


def _linear(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Position interpolation (Chen et al., 2023): positions divided by a factor."""
    return plain / scaling["factor"], 1.0


def _llama3(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Llama 3.1: short wavelengths are unchanged, long ones stretched, those between interpolated."""
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / max(high - low, 1e-30), 0, 1)  # Llama 4 has equal ones: nothing between
    return plain * (kept + (1 - kept) / scaling["factor"]), 1.0


def _factors(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """A divisor for each pair (LongRoPE: Ding et al., 2024)."""
    return plain / np.asarray(scaling["factors"], np.float64), scaling.get("attention_factor", 1.0)


def _proportional(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Gemma 4: the first pairs rotate as in a head that rotates as a whole, the others do not rotate."""
    rotated = int(scaling["partial_rotary_factor"] * len(plain))
    return np.where(np.arange(len(plain)) < rotated, plain, 0.0), 1.0


def _yarn(plain: np.ndarray, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """YaRN (Peng et al., 2023): scale each pair by its turns in the original length; scale attention."""
    factor, pairs = scaling["factor"], len(plain)

    def pair_that_turns(times: float) -> float:
        length = scaling["original_max_position_embeddings"]
        return pairs * math.log(length / (times * 2 * math.pi)) / math.log(theta)

    first = pair_that_turns(scaling.get("beta_fast") or 32)
    last = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    stretched = np.clip((np.arange(pairs) - first) / max(last - first, 0.001), 0, 1)
    return plain * (1 - stretched + stretched / factor), _yarn_attention_factor(factor, scaling)


def _yarn_attention_factor(factor: float, scaling: dict[str, Any]) -> float:
    def attention_factor(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if (given := scaling.get("attention_factor")) is not None:
        return given
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return attention_factor(scaling["mscale"]) / attention_factor(scaling["mscale_all_dim"])
    return attention_factor(1.0)


def longrope_attention_factor(scaling: Mapping[str, Any], context: int) -> float:
    """The factor on cosine and sine of a model that "longrope" extends to `context` positions."""
    before = scaling["original_max_position_embeddings"]
    stretch = scaling.get("factor") or context / before
    if (given := scaling.get("attention_factor")) is not None:
        return given
    return 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(before))


_SCALED = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "factors": _factors,
    "proportional": _proportional,
}
