"""Folders with quantized weights, made of random codes, and the values that they stand for.

The values follow each format's published definition, in float64, one number after another. `write_folder`
stores the linear layers of a tiny model so.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.tiny_models import DATA, read_folder

Made = tuple[dict[str, np.ndarray], np.ndarray]  # the tensors by suffix, the values (rows, k)

_DTYPES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "int32": "I32",
    "uint32": "U32", "int64": "I64", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip


def save(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file; the package's own writer knows no FP8 of NumPy."""
    at, header = 0, {}
    for name, each in tensors.items():
        entry = {"dtype": _DTYPES[str(each.dtype)], "shape": each.shape}
        header[name] = {**entry, "data_offsets": [at, at := at + each.nbytes]}
    text = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(each).tobytes() for each in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_folder(
    folder: Path, model: str, config: dict[str, Any], make: Callable[[str, tuple[int, int]], Made | None]
) -> tuple[Path, Path]:
    """A tiny model whose matrices are as `make(module, shape)` says, and the same model in float32."""
    _, tensors = read_folder(model)
    stored, plain = {}, {}
    for name, values in tensors.items():
        module = name.removesuffix(".weight")
        made = make(module, values.shape) if values.ndim == 2 and "proj" in name else None
        stored |= {name: values} if made is None else {f"{module}.{s}": each for s, each in made[0].items()}
        plain[name] = values if made is None else made[1].astype(np.float32)
    found = []
    for kind, each in (("stored", stored), ("plain", plain)):
        shutil.copytree(DATA / model, path := folder / kind)
        for file in path.glob("*.safetensors*"):
            file.unlink()
        save(path / "model.safetensors", each)
        found.append(path)
    changed = {**json.loads((found[0] / "config.json").read_text()), **config}
    (found[0] / "config.json").write_text(json.dumps(changed))
    return found[0], found[1]


def pack(codes: list[int], bits: int) -> list[int]:
    """Codes as words of 32 bits, one after another from the lowest bit, also across words."""
    whole = sum(code << (bits * i) for i, code in enumerate(codes))
    return [whole >> (32 * i) & 0xFFFFFFFF for i in range(-(-len(codes) * bits // 32))]


def words(rows: list[list[int]], bits: int) -> np.ndarray:
    return np.array([pack(row, bits) for row in rows], np.uint32)


def scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float16) -> np.ndarray:
    return (rng.uniform(0.5, 1.5, shape) / 64).astype(dtype)


def gptq(rng: np.random.Generator, shape: tuple[int, int], bits: int, group: int, *, symmetric: bool,
         reordered: bool = False, stored_less: int = 1) -> Made:  # fmt: skip
    """w[o, i] = scale[g, o] * (q[i, o] - (zero[g, o] + 1)) with g = g_idx[i]."""
    outputs, inputs = shape
    groups = inputs // group
    q = rng.integers(0, 1 << bits, (outputs, inputs))
    zero = rng.integers(1, 1 << bits, (groups, outputs))
    if symmetric:
        zero[:] = 1 << (bits - 1)
    scale = scales(rng, (groups, outputs))
    g_idx = np.arange(inputs) // group
    if reordered:
        g_idx = rng.permutation(g_idx)
    values = np.empty(shape)
    for o in range(outputs):
        for i in range(inputs):
            g = g_idx[i]
            values[o, i] = float(scale[g, o]) * (int(q[o, i]) - int(zero[g, o]))
    tensors = {
        "qweight": words(q.tolist(), bits).T.view(np.int32),
        "qzeros": words((zero - stored_less).tolist(), bits).view(np.int32),
        "scales": scale,
        "g_idx": g_idx.astype(np.int32),
    }
    return tensors, values


def awq(rng: np.random.Generator, shape: tuple[int, int], group: int) -> Made:
    """w[o, i] = scale[g, o] * (q[i, o] - zero[g, o]); a word has outputs 0 2 4 6 1 3 5 7."""
    outputs, inputs = shape
    q, zero = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (inputs // group, outputs))
    scale = scales(rng, (inputs // group, outputs))
    values = np.array(
        [[float(scale[i // group, o]) * int(q[i, o] - zero[i // group, o]) for i in range(inputs)]
         for o in range(outputs)]
    )  # fmt: skip

    def packed(codes: np.ndarray) -> np.ndarray:
        rows = [
            [row[8 * word + place] for word in range(outputs // 8) for place in (0, 2, 4, 6, 1, 3, 5, 7)]
            for row in codes.tolist()
        ]
        return words(rows, 4).view(np.int32)

    return {"qweight": packed(q), "qzeros": packed(zero), "scales": scale}, values


def mlx(rng: np.random.Generator, shape: tuple[int, int], bits: int, group: int) -> Made:
    """w[o, i] = scale[o, g] * q[o, i] + bias[o, g]."""
    outputs, inputs = shape
    q = rng.integers(0, 1 << bits, shape)
    scale = scales(rng, (outputs, inputs // group), np.float16)
    bias = (-scale.astype(np.float32) * (1 << (bits - 1))).astype(np.float16)
    values = np.array(
        [[float(scale[o, i // group]) * int(q[o, i]) + float(bias[o, i // group]) for i in range(inputs)]
         for o in range(outputs)]
    )  # fmt: skip
    return {"weight": words(q.tolist(), bits), "scales": scale, "biases": bias}, values


def packed_integers(rng: np.random.Generator, shape: tuple[int, int], bits: int, group: int, *,
                    symmetric: bool) -> Made:  # fmt: skip
    """compressed-tensors' pack-quantized: w[o, i] = scale[o, g] * (q[o, i] - zero[o, g]), both signed, stored
    with 2^(bits - 1) added.
    """
    outputs, inputs = shape
    half = 1 << (bits - 1)
    q = rng.integers(-half, half, shape)
    zero = np.zeros((outputs, inputs // group), int)
    if not symmetric:
        zero = rng.integers(-half, half, zero.shape)
    scale = scales(rng, zero.shape, ml_dtypes.bfloat16)
    values = np.array(
        [[float(scale[o, i // group]) * int(q[o, i] - zero[o, i // group]) for i in range(inputs)]
         for o in range(outputs)]
    )  # fmt: skip
    tensors = {
        "weight_packed": words((q + half).tolist(), bits).view(np.int32),
        "weight_shape": np.array(shape, np.int64),
        "weight_scale": scale,
    }
    if not symmetric:
        tensors["weight_zero_point"] = words((zero + half).T.tolist(), bits).T.view(np.int32)
    return tensors, values


def int8_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Made:
    """compressed-tensors' int-quantized: bytes, and a scale for each row."""
    q, scale = rng.integers(-128, 128, shape).astype(np.int8), scales(rng, (shape[0], 1), np.float32)
    return {"weight": q, "weight_scale": scale}, q * scale.astype(np.float64)


def fp8(rng: np.random.Generator, shape: tuple[int, int], scale_name: str, block: tuple[int, int]) -> Made:
    """E4M3: sign, four bits of exponent e, three of fraction f: 2^(e - 7) (1 + f / 8), or 2^-6 f / 8."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 127 == 127] = 0  # NaN
    tall, wide = block
    scale = (rng.uniform(0.5, 1.5, (-(-shape[0] // tall), -(-shape[1] // wide))) / 4096).astype(np.float32)
    values = np.empty(shape)
    for o in range(shape[0]):
        for i in range(shape[1]):
            sign, e, f = int(codes[o, i]) >> 7, int(codes[o, i]) >> 3 & 15, int(codes[o, i]) & 7
            size = 2.0 ** (e - 7) * (1 + f / 8) if e else 2.0**-6 * f / 8
            values[o, i] = (-size if sign else size) * float(scale[o // tall, i // wide])
    return {"weight": codes.view(ml_dtypes.float8_e4m3fn), scale_name: scale}, values


FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def mxfp4_stack(
    rng: np.random.Generator, shape: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (experts, rows, k / 32, 16), scales, and the values (experts, rows, k), by the OCP's definition;
    the low half of a byte comes first.
    """
    experts, rows, k = shape
    codes = rng.integers(0, 16, shape)
    exponents = rng.integers(120, 124, (experts, rows, k // 32)).astype(np.uint8)
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8).reshape(experts, rows, k // 32, 16)
    numbers = np.array([*FP4, *(-n for n in FP4)])
    return packed, exponents, numbers[codes] * 2.0 ** (np.repeat(exponents, 32, axis=-1).astype(float) - 127)
