"""Tiny random encoders, and the states that Hugging Face transformers computes with them.

tests/references/tiny_encoders.py makes them; `tests/data/tiny_encoders` keeps them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

from airllm.architectures import all_architectures
from airllm.architectures.declaration import Architecture, Tiny
from tests.support.models import tiny_models

DATA = Path(__file__).parents[2] / "data" / "tiny_encoders"
STATES = DATA / "states.npz"
VOCABULARY = tiny_models.VOCABULARY
DECLARED: dict[str, tuple[Architecture, Tiny]] = {
    name: (each, tiny) for each in all_architectures() if each.encoder for name, tiny in each.tiny.items()
}
ENCODERS = tuple(DECLARED)


def reference(name: str) -> list[np.ndarray]:
    """The states (tokens, width) of each of `tiny_models.texts`."""
    with np.load(STATES) as kept:
        return np.split(kept[name], np.cumsum(tiny_models.LENGTHS)[:-1])


def read_folder(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json, and all tensors as float32."""
    with safe_open(DATA / name / "model.safetensors", framework="numpy") as file:
        tensors = {each: file.get_tensor(each).astype(np.float32) for each in file.keys()}  # noqa: SIM118
    return json.loads((DATA / name / "config.json").read_text()), tensors


def write_gguf(name: str, path: Path) -> Path:
    """A folder as a GGUF file in float32, with the names of the package gguf, as llama.cpp's converter would
    write it. It pools the mean of the states.
    """
    config, tensors = read_folder(name)
    architecture = DECLARED[name][0].name
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _OTHERS[architecture](writer, config)
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for each, values in tensors.items():
        if each.startswith("pooler."):
            continue  # of classifiers
        found = names.get_name(each, try_suffixes=(".weight", ".bias"))
        assert found, each
        less_one = config["model_type"] in tiny_models.NORMS_LESS_ONE and each.endswith("norm.weight")
        writer.add_tensor(found, values + 1 if less_one else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _bert(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_layer_norm_eps(config["layer_norm_eps"])


def _nomic(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def _modern(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_sliding_window(config["local_attention"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _gemma(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(ropes["full_attention"]["factor"])


_OTHERS = {"bert": _bert, "nomic-bert": _nomic, "modern-bert": _modern, "gemma-embedding": _gemma}
