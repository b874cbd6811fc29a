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

from tests.support.models.tiny_models import DATA, read_folder

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


def mlx_floats(rng: np.random.Generator, shape: tuple[int, int], mode: str) -> Made:
    """w[o, i] = scale[o, g] * float[o, i]: E2M1 with E4M3 scales of 16 (nvfp4), E4M3 with powers of two for
    32 (mxfp8).
    """
    outputs, inputs = shape
    if mode == "nvfp4":
        codes, scale = rng.integers(0, 16, shape), rng.integers(0x08, 0x18, (outputs, inputs // 16))
        values = np.array(E2M1)[codes] * np.repeat(np.vectorize(e4m3)(scale), 16, axis=1)
        return {"weight": words(codes.tolist(), 4), "scales": scale.astype(np.uint8)}, values
    codes = rng.integers(0, 0x70, shape) | rng.integers(0, 2, shape) << 7  # no NaN
    scale = rng.integers(116, 119, (outputs, inputs // 32))
    values = np.vectorize(e4m3)(codes) * np.repeat(2.0 ** (scale - 127), 32, axis=1)
    return {"weight": words(codes.tolist(), 8), "scales": scale.astype(np.uint8)}, values


def e4m3(code: int) -> float:
    """The OCP's definition; the codes 127 and 255 are no numbers."""
    sign, exponent, mantissa = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


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
E2M1 = [*FP4, *(-n for n in FP4)]


def nvfp4(
    rng: np.random.Generator, shape: tuple[int, int], names: tuple[str, str], divides: bool, more: str
) -> Made:
    """E2M1 codes, the low half of a byte first, times E4M3 scales of 16, times (or divided by) a number.
    `more`: a scale of activations.
    """
    codes = rng.integers(0, 16, shape)
    scale = rng.uniform(20, 60, (shape[0], shape[1] // 16)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(3000 if divides else 1 / 3000)
    factor = 1 / float(whole) if divides else float(whole)
    values = np.array(
        [[E2M1[codes[o, i]] * float(scale[o, i // 16]) * factor for i in range(shape[1])]
         for o in range(shape[0])]
    )  # fmt: skip
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    tensors = {names[0]: packed, "weight_scale": scale, names[1]: whole.reshape(1 if divides else ())}
    return {**tensors, more: np.ones(1, np.float32)}, values


# The table of nf4 in the paper on QLoRA, and that of bitsandbytes' fp4 (a sign and the third bit from the top
# are not those of E2M1).
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]  # fmt: skip
_BNB_FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
TABLES = {"nf4": NF4, "fp4": [*_BNB_FP4, *(-n for n in _BNB_FP4)]}


def bnb_4bit(
    rng: np.random.Generator, shape: tuple[int, int], kind: str, block: int, nested: int = 0
) -> Made:
    """Codes of the flat matrix, the high half of a byte first, times the scale of their block. With `nested`
    the scales are table[code] * outer scale + offset.
    """
    count = shape[0] * shape[1]
    codes = rng.integers(0, 16, count)
    blocks = -(-count // block)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": shape}
    table = np.array(TABLES[kind], np.float32)
    tensors = {"weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8).reshape(-1, 1)}
    scale = [float(each) for each in scales(rng, (blocks,), np.float32)]
    if nested:
        of, inner = rng.integers(0, 256, blocks), np.linspace(-1, 1, 256).astype(np.float32)
        outer = scales(rng, (-(-blocks // nested),), np.float32)
        state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.03}
        tensors |= {"weight.absmax": of.astype(np.uint8), "weight.nested_absmax": outer,
                    "weight.nested_quant_map": inner}  # fmt: skip
        scale = [float(inner[of[i]]) * float(outer[i // nested]) + 0.03 for i in range(blocks)]
    else:
        tensors["weight.absmax"] = np.array(scale, np.float32)
    tensors["weight.quant_map"] = table
    text = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
    values = [float(table[codes[i]]) * scale[i // block] for i in range(count)]
    return tensors, np.array(values).reshape(shape)


def bnb_8bit(rng: np.random.Generator, shape: tuple[int, int]) -> Made:
    """w[o, i] = SCB[o] * q[o, i] / 127."""
    q, scb = (
        rng.integers(-127, 128, shape).astype(np.int8),
        rng.uniform(0.5, 1.5, shape[0]).astype(np.float32),
    )
    tensors = {"weight": q, "SCB": scb, "weight_format": np.array(0, np.uint8)}
    return tensors, q * scb.astype(np.float64)[:, None] / 127


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
    return (
        packed,
        exponents,
        np.array(E2M1)[codes] * 2.0 ** (np.repeat(exponents, 32, axis=-1).astype(float) - 127),
    )
