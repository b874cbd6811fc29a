"""Random weights in every stored format, for tests."""

import numpy as np

from airllm.formats import FORMATS, Quantized

# Offsets, in steps of the scale, by which random blocks lie around zero, as weights do.
CENTRES = {"q4_1": -7.5, "q5_1": -15.5, "q4_k": 7.5, "q5_k": 15.5, "q2_k": 1.5}


def scales(name: str) -> int:
    """The number of scales and offsets of a block of this format: 1, or 2 with an offset."""
    return len(FORMATS[name].halves) or 1


def with_scales(data: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """Blocks (..., bytes) whose scales and offsets are these values (..., how many), rounded to what fits."""
    data = data.copy()
    if name == "mxfp4":  # a power of two
        with np.errstate(divide="ignore"):
            data[..., 0] = (128 + np.round(np.log2(np.abs(values[..., 0])))).clip(0, 255)
        return data
    halves = values.astype(np.float16)
    if name == "iq1_m":  # a nibble in each of four words, above their scales
        nibbles = halves.view(np.uint16) >> np.array((0, 4, 8, 12), np.uint16) << 4 & 0xF0
        data[..., 49:56:2] = data[..., 49:56:2] & 0x0F | nibbles.astype(np.uint8)
    for i, at in enumerate(FORMATS[name].halves):
        data[..., at : at + 2] = halves[..., i, None].view(np.uint8)
    return data


def blocks(name: str, shape: tuple[int, ...], seed: int = 0, largest: float = 0.02) -> Quantized:
    """Every bit random but those of the scales, of either sign and up to `largest`, and of offsets."""
    rng = np.random.default_rng(seed)
    of = FORMATS[name]
    *lead, k = shape
    data = rng.integers(0, 256, (*lead, k // of.values, of.bytes), np.uint8)
    values = rng.uniform(-largest, largest, (*data.shape[:-1], scales(name)))
    if name in CENTRES:
        values[..., 1] = values[..., 0] * CENTRES[name] * rng.uniform(0.7, 1.3, data.shape[:-1])
    return Quantized(with_scales(data, name, values).reshape(*lead, -1), name)


def read_by(module) -> list[str]:
    """The formats that a backend's own kernels read; the definition runs for others."""
    known = module.stored_formats() if hasattr(module, "stored_formats") else FORMATS
    return [name for name in FORMATS if name in known]
