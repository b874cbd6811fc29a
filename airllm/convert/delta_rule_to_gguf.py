"""The tensors of the gated delta rule in the order of GGUF files, by indices into those of a folder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airllm.architectures.families import architecture_named
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import DeltaRule
from airllm.architectures.tensor_names import NamedTensors, gguf_name
from airllm.files.gguf_writer import Source
from airllm.files.weight_file import ModelFileError, Stored
from airllm.formats import FORMATS, Quantized


def in_gguf(architecture: str, mixer: DeltaRule) -> DeltaRule:
    """The same mixer, as GGUF files of this architecture store it."""
    how = dict.fromkeys(architecture_named(architecture).recurrent_in_gguf, True)
    sizes = mixer.key_heads, mixer.value_heads, mixer.key_dim, mixer.value_dim, mixer.taps
    return DeltaRule(*sizes, **how)


def delta_sources(tensors: NamedTensors, c: ModelConfig, layer: int, mixer: DeltaRule) -> Iterator[Source]:
    """What a GGUF file has of the mixer of a layer."""
    target, architecture = in_gguf(c.architecture, mixer), architecture_named(c.architecture)
    for name in target.weights(c.width):

        def made(name: str = name) -> list[Stored]:
            return [_tensor(tensors, f"layers.{layer}.", name, mixer, target)]

        yield Source.of(gguf_name(architecture, f"layers.{layer}.{name}"), made()[0], made)


def _tensor(tensors: NamedTensors, layer: str, name: str, mixer: DeltaRule, target: DeltaRule) -> Stored:
    """One of the tensors, in the order of `target`."""
    values, heads = _places_of_values(target), _order(target)
    keys = 2 * mixer.key_heads * mixer.key_dim
    if name in ("delta.qkv", "delta.gate") and mixer.joined:
        return tensors.tensor(f"{layer}delta.qkvz")[_joined_rows(mixer)[name]]
    if name == "delta.decay" and mixer.log_decay:
        return -np.exp(np.asarray(tensors.tensor(f"{layer}delta.decay_log"), np.float32))[heads]
    stored = tensors.tensor(layer + name)
    if name == "delta.filter":
        stored = np.asarray(stored).reshape(mixer.channels, mixer.taps)
    if name in ("delta.qkv", "delta.filter"):
        return stored[np.concatenate([np.arange(keys), keys + values])]
    if name == "delta.output":
        return _columns(tensors, stored, values, mixer.value_dim)
    if name == "delta.gate":
        return stored[values]
    return stored[heads] if name in ("delta.rate", "delta.step", "delta.step_bias") else stored


def _order(target: DeltaRule) -> np.ndarray:
    """The value heads of a folder in the order of the file."""
    heads = np.arange(target.value_heads)
    return heads.reshape(target.key_heads, -1).T.reshape(-1) if target.tiled else heads


def _places_of_values(target: DeltaRule) -> np.ndarray:
    return (_order(target)[:, None] * target.value_dim + np.arange(target.value_dim)).reshape(-1)


def _joined_rows(mixer: DeltaRule) -> dict[str, np.ndarray]:
    """The rows of queries, keys and values, and of gates, which a folder has by turns for each key head."""
    wide = mixer.values // mixer.key_heads
    rows = np.arange(mixer.channels + mixer.values).reshape(mixer.key_heads, -1)
    parts = np.split(rows, np.cumsum([mixer.key_dim, mixer.key_dim, wide]), axis=1)
    q, k, v, gate = (each.reshape(-1) for each in parts)
    return {"delta.qkv": np.concatenate([q, k, v]), "delta.gate": gate}


def _columns(tensors: NamedTensors, stored: Stored, columns: np.ndarray, head: int) -> Stored:
    if not isinstance(stored, Quantized):
        return np.ascontiguousarray(np.asarray(stored)[:, columns])
    of = FORMATS[stored.format]
    if head % of.values:
        found = f"has blocks of {of.values} values in {stored.format}"
        raise ModelFileError(tensors.weights.path, "a tensor", found, f"whole blocks in heads of {head}")
    blocks = stored.data.reshape(len(stored.data), -1, head // of.values * of.bytes)
    ordered = blocks[:, columns[::head] // head]
    return Quantized(ordered.reshape(stored.data.shape), stored.format)
