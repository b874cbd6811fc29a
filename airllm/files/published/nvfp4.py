"""NVIDIA's NVFP4: codes of four bits (E2M1), a scale in FP8 (E4M3) for each 16, and one for the matrix.

modelopt's scale of the matrix multiplies, that of compressed-tensors divides. No format of airllm has such
scales; q8_0 holds a value to 0.4 % of the largest one of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from airllm.files.published.scheme import Held, Parts, nearest, spread
from airllm.formats.bits import nibbles

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_GROUP = 16
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])  # the value of each code


@dataclass(frozen=True)
class Nvfp4:
    """`codes` and `whole`: the suffixes of the codes, two in a byte, and of the matrix's scale, which
    `divides` or multiplies.
    """

    codes: str
    whole: str
    divides: bool
    ignored: tuple[str, ...]
    title: str = "NVFP4"

    @property
    def parts(self) -> tuple[str, ...]:
        return self.codes, "weight_scale", self.whole

    def stores(self, parts: Parts) -> bool:
        return self.codes in parts and parts.dtype(self.codes) == np.uint8

    def held(self, parts: Parts) -> Held:
        shape = parts.shape(self.codes)
        if len(shape) != 2 or shape[1] * 2 % _GROUP:
            expected = f"(rows, bytes) with {_GROUP // 2} bytes for each scale"
            raise parts.error(self.codes, f"has shape {shape}", expected)
        rows, row = shape[0], shape[1] * 2
        parts.require("weight_scale", (rows, row // _GROUP))
        if parts.dtype("weight_scale") != _E4M3:
            raise parts.error("weight_scale", f"has dtype {parts.dtype('weight_scale')}", "FP8 (E4M3)")
        if self.whole not in parts or parts.shape(self.whole) not in ((), (1,)):
            found = f"has shape {parts.shape(self.whole)}" if self.whole in parts else "is missing"
            raise parts.error(self.whole, found, "one number, the scale of the matrix")
        return Held((rows, row), *nearest(row))

    def rows(self, parts: Parts, rows: slice) -> np.ndarray:
        codes = nibbles(np.ascontiguousarray(parts.read(self.codes)[rows]), run=1)
        whole = parts.floats(self.whole).reshape(())
        scale = parts.read("weight_scale")[rows].astype(np.float32)
        scale = scale / whole if self.divides else scale * whole
        return E2M1[codes] * spread(scale, _GROUP, codes.shape[1])


MODELOPT = Nvfp4("weight", "weight_scale_2", divides=False, ignored=("input_scale", "k_scale", "v_scale"))
PACKED = Nvfp4("weight_packed", "weight_global_scale", divides=True, ignored=("input_global_scale",))


def check_groups(weights: dict[str, Any]) -> None:
    """Raise ValueError unless scales are of 16 values and codes are symmetric."""
    group = weights.get("group_size", _GROUP)
    if group != _GROUP or weights.get("symmetric", True) is not True:
        raise ValueError(f"NVFP4 in groups of {group!r}, symmetric {weights.get('symmetric', True)!r}")
