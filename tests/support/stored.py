"""Random weights in every stored format, for tests."""

import numpy as np

from airllm.formats import FORMATS, Quantized

# Offsets, in steps of the scale, by which random blocks lie around zero, as weights do.
CENTRES = {"q4_1": -7.5, "q5_1": -15.5, "q4_k": 7.5, "q5_k": 15.5, "q2_k": 1.5}


def with_halves(data: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """Blocks (..., bytes) whose scales and offsets are these float16 values (..., how many)."""
    data = data.copy()
    for i, at in enumerate(FORMATS[name].halves):
        data[..., at : at + 2] = values[..., i, None].astype(np.float16).view(np.uint8)
    return data


def blocks(name: str, shape: tuple[int, ...], seed: int = 0, largest: float = 0.02) -> Quantized:
    """Every bit random but those of the scales, of either sign and up to `largest`, and of offsets."""
    rng = np.random.default_rng(seed)
    of = FORMATS[name]
    *lead, k = shape
    data = rng.integers(0, 256, (*lead, k // of.values, of.bytes), np.uint8)
    scales = rng.uniform(-largest, largest, (*data.shape[:-1], len(of.halves)))
    if name in CENTRES:
        scales[..., 1] = scales[..., 0] * CENTRES[name] * rng.uniform(0.7, 1.3, data.shape[:-1])
    return Quantized(with_halves(data, name, scales).reshape(*lead, -1), name)


def read_by(module) -> list[str]:
    """The formats that a backend's own kernels read; the definition runs for others."""
    known = module.stored_formats() if hasattr(module, "stored_formats") else FORMATS
    return [name for name in FORMATS if name in known]
