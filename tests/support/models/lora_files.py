"""LoRA adapters of tiny models, and the same models with the adapters merged into their weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.support.models import published, tiny_gguf_names, tiny_gguf_tensors, tiny_models
from tests.support.models.tiny_models import DATA, read_folder

RANK, ALPHA = 3, 5.0


def low_rank(name: str, shape: tuple[int, ...], rank: int = RANK) -> tuple[np.ndarray, np.ndarray]:
    bits = tiny_models.random_bits(f"lora {name} {rank}", rank * sum(shape)).view(np.int8)
    values = bits.astype(np.float32) / 256
    return values[: rank * shape[1]].reshape(rank, -1), values[rank * shape[1] :].reshape(-1, rank)


def is_changed(name: str, values: np.ndarray) -> bool:
    return values.ndim == 2 and bool(re.search(r"_proj|\.w[123]\.|^lm_head", name))


def write_peft(model: str, path: Path, rank: int = RANK, **config: Any) -> Path:
    """An adapter of all linear layers, as PEFT's save_pretrained writes it."""
    path.mkdir()
    found = {}
    for name, values in read_folder(model)[1].items():
        if is_changed(name, values):
            a, b = low_rank(name, values.shape, rank)
            module = f"base_model.model.{name.removesuffix('.weight')}"
            found |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    save_file(found, path / "adapter_model.safetensors")
    whole = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", **config}
    (path / "adapter_config.json").write_text(json.dumps(whole))
    return path


def write_lora(model: str, path: Path, **keys: Any) -> Path:
    """The same adapter as a GGUF file: rows of queries and keys as the architecture's files have them."""
    config, tensors = read_folder(model)
    architecture = tiny_gguf_names.architecture_of(config)
    writer = gguf.GGUFWriter(path, keys.pop("architecture", architecture))
    writer.add_type(keys.pop("type", "adapter"))
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, values in tensors.items():
        if is_changed(name, values):
            a, b = low_rank(name, values.shape)
            stored = tiny_gguf_names.gguf_name(config, name)
            writer.add_tensor(f"{stored}.lora_a", a)
            writer.add_tensor(
                f"{stored}.lora_b", np.ascontiguousarray(tiny_gguf_tensors.in_llama_cpp(config, name, b))
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merged(model: str, path: Path, *adapters: tuple[int, float]) -> Path:
    """The model's folder with the weights that it has with adapters of these ranks, times these factors."""
    _, tensors = read_folder(model)
    for name, values in tensors.items():
        if is_changed(name, values):
            whole = values.astype(np.float64)
            for rank, scale in adapters:
                a, b = (each.astype(np.float64) for each in low_rank(name, values.shape, rank))
                whole += scale * b @ a
            tensors[name] = whole.astype(np.float32)
    path.mkdir()
    published.save(path / "model.safetensors", tensors)
    (path / "config.json").write_text((DATA / model / "config.json").read_text())
    return path
