"""Adapters as folders of PEFT: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.tensor_names import PREFIXES, NamedTensors, folder_names
from airllm.engine.adapters.names import Target, matrices, target
from airllm.files.safetensors import SafetensorsFile
from airllm.files.weight_file import ModelFileError, read_json, unmap

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<end>[AB])(?:\.default)?\.weight")


def read(path: Path, tensors: NamedTensors) -> Iterator[tuple[Target, np.ndarray, np.ndarray]]:
    """Each matrix that the folder changes, with A and B, which has the scale."""
    config = _config(path)
    if not (path / WEIGHTS).is_file():
        raise ModelFileError(path, f"file {WEIGHTS}", "is missing", "the adapter's matrices as safetensors")
    file = SafetensorsFile(path / WEIGHTS)
    try:
        for module, ends in _modules(file).items():
            name = _known(tensors).get(_without_prefix(module))
            if name is None or set(ends) != {"A", "B"}:
                found = "is unknown" if name is None else f"has only lora_{''.join(ends)}"
                expected = "A and B of a matrix in the model's layers, or of its output"
                raise ModelFileError(file.path, f"module {module}", found, expected)
            a, b = (file.tensor(ends[end]).astype(np.float32) for end in "AB")
            scale = np.float32(_scale(path, config, module, len(a)))
            yield target(tensors, name, f"module {module}"), a, b * scale
    finally:
        unmap(file.map)


def _config(path: Path) -> dict[str, Any]:
    config = read_json(path / CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise ModelFileError(path / CONFIG, "key peft_type", f"has value {kind!r}", "'LORA'")
    for key, plain in (
        ("use_dora", False),
        ("fan_in_fan_out", False),
        ("bias", "none"),
        ("modules_to_save", None),
    ):
        if (value := config.get(key)) and value != plain:
            raise ModelFileError(path / CONFIG, f"key {key}", f"has value {value!r}", f"{plain!r}")
    return config


def _modules(file: SafetensorsFile) -> dict[str, dict[str, str]]:
    """Module -> "A" and "B" -> name of the tensor."""
    found: dict[str, dict[str, str]] = {}
    for name in file.places:
        match = _KEY.fullmatch(name)
        if match is None:
            raise ModelFileError(file.path, f"tensor {name}", "is unknown", "lora_A or lora_B of a matrix")
        found.setdefault(match["module"], {})[match["end"]] = name
    return found


def _known(tensors: NamedTensors) -> dict[str, str]:
    """The name of a module in folders, without the model's prefix -> ours."""
    return {
        stored.removesuffix(".weight"): name
        for name in matrices(tensors)
        for stored in folder_names(tensors.config.architecture, name)
    }


def _without_prefix(module: str) -> str:
    """The name of the module in the language model."""
    longest = sorted({*PREFIXES, *PREFIXES.values()}, key=len, reverse=True)
    return module.removeprefix(next(prefix for prefix in longest if module.startswith(prefix)))


def _scale(path: Path, config: dict[str, Any], module: str, rank: int) -> float:
    """Alpha over the rank, or over its root."""
    alpha = _of_module(config.get("alpha_pattern") or {}, module, config.get("lora_alpha", rank))
    if type(alpha) not in (int, float) or not rank:
        raise ModelFileError(
            path / CONFIG, "key lora_alpha", f"has value {alpha!r} for rank {rank}", "a number"
        )
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(patterns: dict[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that is the end of the module's name, as PEFT looks it up."""
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default
