"""Reads a model's configuration from a GGUF file's metadata, and writes such metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from airllm.architectures.declaration import Architecture
from airllm.architectures.encodings import gguf_encoding
from airllm.architectures.families import architecture_named, architecture_of_gguf, gguf_architectures
from airllm.architectures.keys import KEYS, keys_of, write_keys
from airllm.architectures.latent import gguf_scores, latent_fields, latent_keys
from airllm.architectures.layer_sizes import (
    gguf_halves,
    gguf_lists,
    gguf_near_dim,
    gguf_sizes,
    write_sizes,
)
from airllm.architectures.model_config import FEED_FORWARD, ModelConfig
from airllm.architectures.recurrent_keys import gguf_recurrent, recurrent_gguf_keys
from airllm.architectures.ropes import ROPE_DIM, drop_unused, gguf_ropes, nope_beside_windows, write_ropes
from airllm.architectures.tensor_names import gguf_name
from airllm.architectures.values import Values, check_config
from airllm.architectures.windows import gguf_windows, write_windows
from airllm.files.weight_file import ModelFileError

_EXTRA = "nextn_predict_layers"  # layers of block_count that guess further tokens; they are not used

# Bias field -> the tensor in the first layer, with experts if any has, that shows whether there is a bias; in
# a layer, if some are mixers and others feed-forwards.
_BIASES = {
    "qkv_bias": "attention.q_bias",
    "output_bias": "attention.output_bias",
    "mlp_bias": "feed_forward.up_bias",
    "router_bias": "experts.router_bias",
    "expert_bias": "experts.0.gate_bias",
    "selection_bias": "experts.selection_bias",
}


class GgufHead(Protocol):
    """What the configuration is read from: an opened GGUF file, or one still to be written."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, Any]: ...


def gguf_config(file: GgufHead) -> ModelConfig:
    """The configuration in a GGUF file's metadata. Raises ModelFileError."""
    architecture = _architecture(file)
    values = Values(file.path, file.metadata, f"{architecture.name}.")
    lists = gguf_lists(architecture, values)
    largest = {name: max(each) for name, each in lists.items()}
    found = _numbers(architecture, values, {"vocabulary": _vocabulary(file, values), **largest})
    found["layers"] = layers = found["layers"] - values.whole(_EXTRA, 0, found["layers"] - 1, least=0)
    if (
        not architecture.latent
        and values.whole("attention.value_length", found["head_dim"]) != found["head_dim"]
    ):
        raise values.error("attention.value_length", "differs from key_length", f"{found['head_dim']}")
    dims = found["head_dim"], gguf_near_dim(architecture, values, found["head_dim"])
    ropes = gguf_ropes(architecture, values, file.tensors, *dims, layers)
    windows = gguf_windows(architecture, values, layers)
    ropes |= nope_beside_windows(architecture, windows)
    halves = gguf_halves(architecture, values, layers)
    moe_layers = _layers_with_experts(found, halves)

    def has(name: str) -> bool:
        return gguf_name(architecture, name) in file.tensors

    shown = range(layers) if halves else (moe_layers.index(True) if any(moe_layers) else 0,)
    found |= {name: any(has(f"layers.{i}.{of}") for i in shown) for name, of in _BIASES.items()}
    if architecture.latent:
        found |= latent_fields(found, ropes["rope"]) | gguf_scores(values, found)
        found["joined_kv"] = has("layers.0.attention.kv_b")
    config = ModelConfig(
        **found,
        **drop_unused(ropes, windows),
        **_fixed(architecture, file, found),
        windows=windows,
        tied_embeddings=not has("output"),
        halves=halves,
        moe_layers=moe_layers,
        dense_and_experts=architecture.dense_and_experts and bool(found.get("experts")),
        **gguf_encoding(architecture, file.tensors),
        **gguf_recurrent(architecture, values, layers, has),
        **gguf_sizes(architecture, values, found, lists, windows, file.tensors),
    )
    return check_config(
        values, {name: key.gguf for name, key in keys_of(architecture)}, ROPE_DIM["gguf"], config
    )


def _layers_with_experts(found: Mapping[str, Any], halves: Sequence[str]) -> tuple[bool, ...]:
    """Which layers have experts; () if none has."""
    if not found.get("experts"):
        return ()
    if halves:
        return tuple(half == FEED_FORWARD for half in halves)
    first, step = found["dense_layers"], found["moe_step"]
    return tuple(i >= first and (i + 1) % step == 0 for i in range(found["layers"]))


def _fixed(architecture: Architecture, file: GgufHead, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the architecture says, without norms of queries and keys that this file does not have."""
    norms = architecture.norms
    if norms.none_of_experts:
        there = found.get("experts") != norms.none_of_experts
    else:
        there = gguf_name(architecture, "layers.0.attention.q_norm") in file.tensors
    off = {"qk_norm": ""} if norms.q_and_k_flag and not there else {}
    return architecture.fixed | off


def gguf_keys(config: ModelConfig) -> dict[str, Any]:
    """The keys of a model that `gguf_config` reads, without the architecture's name."""
    architecture = architecture_named(config.architecture)
    found = dict(write_keys(architecture, config)) | {"attention.value_length": config.head_dim}
    if architecture.latent:
        found |= latent_keys(config)
    found |= write_ropes(architecture, config) | write_windows(architecture, config)
    return found | write_sizes(architecture, config) | recurrent_gguf_keys(config)


def _architecture(file: GgufHead) -> Architecture:
    general = Values(file.path, file.metadata)
    name = general.text("general.architecture")
    if (found := architecture_of_gguf(name)) is None:
        expected = f"one of {', '.join(gguf_architectures())}"
        raise general.error("general.architecture", f"has value {name!r}", expected)
    return found


def _numbers(architecture: Architecture, values: Values, found: dict[str, Any]) -> dict[str, Any]:
    """Add the numbers in the keys to `found`. Those of experts are skipped if their count is missing or 0."""
    count = KEYS["experts"].gguf
    dense = count not in values or values.is_zero(count)
    for name, key in keys_of(architecture):
        if name in found or (key.moe and dense):
            continue
        default = architecture.gguf_defaults.get(name, key.default)
        found[name] = key.read_gguf(values, default, found)
    return found


def _vocabulary(file: GgufHead, values: Values) -> int:
    """The rows of the embedding: `vocab_size` is optional, and may not count padding."""
    if "token_embd.weight" not in file.tensors:
        raise ModelFileError(file.path, "tensor token_embd.weight", "is missing", "the embedding of tokens")
    shape = file.tensors["token_embd.weight"].shape
    width = values.whole("embedding_length")
    if len(shape) != 2 or shape[1] != width:
        expected = f"(tokens, {width}), as key {values.under}embedding_length says"
        raise ModelFileError(file.path, "tensor token_embd.weight", f"has shape {shape}", expected)
    return shape[0]
