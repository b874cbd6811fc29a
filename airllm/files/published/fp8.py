"""FP8 (E4M3) with a scale for the matrix, for each row, or for each block of it.

The scale multiplies, although some folders call it "inverse". Of ggml's formats, q8_0 has about as many bits:
it holds a value to 0.4 % of the largest one of 32, FP8 itself to 6 % of the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from airllm.files.published.scheme import Held, Parts, nearest, pair, spread

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True)
class Fp8:
    """`block`: rows and columns that share a scale, if the configuration says so."""

    block: tuple[int, int] | None = None
    parts: tuple[str, ...] = ("weight", *_SCALES)
    ignored: tuple[str, ...] = ("input_scale", "activation_scale")

    @property
    def title(self) -> str:
        of = f"blocks of {self.block[0]} x {self.block[1]}" if self.block else "rows or whole matrices"
        return f"FP8 with scales of {of}"

    def stores(self, parts: Parts) -> bool:
        return "weight" in parts and parts.dtype("weight") == _E4M3

    def held(self, parts: Parts) -> Held:
        shape = parts.shape("weight")
        scale = self._scale(parts)
        whole: list[tuple[int, ...]] = [(), (1,), (1, 1)]
        rows: list[tuple[int, ...]] = [(shape[0],), (shape[0], 1)]
        known = whole + rows
        if self.block:
            known.append((-(-shape[0] // self.block[0]), -(-shape[-1] // self.block[1])))
        if len(shape) != 2 or parts.shape(scale) not in known:
            found = f"has shape {parts.shape(scale)} for weights {shape}"
            raise parts.error(scale, found, f"one of {', '.join(map(str, known))}")
        return Held(shape, *nearest(shape[-1]))

    def rows(self, parts: Parts, rows: slice) -> np.ndarray:
        values = parts.read("weight")[rows].astype(np.float32)
        scale = parts.floats(self._scale(parts))
        count, width = parts.shape("weight")
        if scale.size == 1:
            return values * scale.reshape(())
        if scale.size == count and scale.shape[1:] in ((), (1,)):
            return values * scale.reshape(-1, 1)[rows]
        assert self.block
        of_rows = scale[np.arange(count)[rows] // self.block[0]]
        return values * spread(of_rows, self.block[1], width)

    def _scale(self, parts: Parts) -> str:
        for suffix in _SCALES:
            if suffix in parts:
                return suffix
        raise parts.error(_SCALES[0], "is missing", "the scale of FP8 weights")


def fp8(config: dict[str, Any]) -> Fp8:
    """DeepSeek's and transformers' "fp8", "fbgemm_fp8", and the FP8 of "modelopt"."""
    if (algorithm := config.get("quant_algo", "FP8")) not in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        raise ValueError(f"quant_algo {algorithm!r}")
    block = config.get("weight_block_size")
    return Fp8(pair(block) if block else None)
