"""Rows of a matrix as blocks of a format."""

from __future__ import annotations

import numpy as np

from airllm import tensor_ops
from airllm.files.published.scheme import Blocks, Codes, Rows, spread, values_of
from airllm.formats.bits import as_half, pack_fifth_bits, pack_nibbles

# Format -> what is added to codes, and the largest sum. q8_0 has signed bytes.
_CODES = {"q4_0": (8, 15), "q5_0": (16, 31), "q4_1": (0, 15), "q5_1": (0, 31), "q8_0": (0, 127)}


def encode(rows: Rows, format: str) -> np.ndarray:
    """The bytes of the rows, uint8 (rows, row_bytes). ValueError if the format cannot hold them."""
    if isinstance(rows, Blocks):
        return rows.data
    if isinstance(rows, Codes) and (rows.least is not None) == format.endswith("_1"):
        return _encode_codes(rows, format)
    values = values_of(rows) if isinstance(rows, Codes) else rows
    if not np.isfinite(values).all():
        raise ValueError("has values that are not finite")
    if format == "float16":
        return np.ascontiguousarray(_to_half(values)).view(np.uint8)
    return tensor_ops.quantize(np.ascontiguousarray(values, np.float32), format).data


def _encode_codes(rows: Codes, format: str) -> np.ndarray:
    zero, most = _CODES[format]
    codes = rows.codes + rows.codes.dtype.type(zero)
    if codes.size and (codes.max() > most or (zero and codes.min() < 0)):
        raise ValueError(f"has codes from {rows.codes.min()} to {rows.codes.max()}, too many for {format}")
    heads = [_heads(rows.scale, codes.shape[1])]
    if rows.least is not None:
        heads.append(_heads(rows.least, codes.shape[1]))
    return np.hstack([*heads, *_packed(codes.reshape(-1, 32), format)]).reshape(len(codes), -1)


def _packed(codes: np.ndarray, format: str) -> list[np.ndarray]:
    """Blocks of 32 codes as they are stored behind the scale."""
    if format == "q8_0":
        return [codes.astype(np.int8).view(np.uint8)]
    each = codes.astype(np.uint8)
    return [pack_fifth_bits(each), pack_nibbles(each)] if format.startswith("q5") else [pack_nibbles(each)]


def _heads(of_groups: np.ndarray, count: int) -> np.ndarray:
    """A number of each group as float16, for each block of 32 in it."""
    per_group = max(count // of_groups.shape[1] // 32, 1)
    return as_half(_to_half(spread(of_groups, per_group, count // 32)).reshape(-1, 1))


def _to_half(values: np.ndarray) -> np.ndarray:
    """In float16. ValueError for a number that is too large for it."""
    with np.errstate(over="ignore"):
        half = np.asarray(values).astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError(f"has {values[~np.isfinite(half)].flat[0]:g}, which float16 cannot hold")
    return half
