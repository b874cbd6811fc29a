"""Identifies a model, so that keys and values of one model are not used with another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from airllm.architectures.tensor_names import NamedTensors, layer_names, shared_names
from airllm.formats import Quantized

_SAMPLE = 256  # bytes of each tensor in the fingerprint


def fingerprint(tensors: NamedTensors) -> str:
    """A string that identifies a model, whatever its file is called. It depends on the configuration and on
    some bytes of the weights.
    """
    config = tensors.config
    middle = layer_names(config, config.layers // 2)
    names = [*shared_names(config), *(name for name in middle if ".experts." not in name)]
    known = hashlib.sha256(repr(config).encode())
    for name in names:
        tensor = tensors.tensor(name)
        data: Any = tensor.data if isinstance(tensor, Quantized) else tensor.view(np.uint8)
        known.update(f"{name} {tensor.shape}".encode() + data.reshape(-1)[:_SAMPLE].tobytes())
    return known.hexdigest()[:32]
