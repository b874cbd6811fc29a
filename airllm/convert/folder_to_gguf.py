"""Converts a Hugging Face folder to the keys and tensors of a GGUF file, by llama.cpp's conventions.

Before it is written, the result is read by the code that reads any GGUF file. A configuration that GGUF's
keys cannot express raises an error and is not written as something else.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airllm.architectures.families import architecture_named
from airllm.architectures.layer_spec import Latent, Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.pooling import DENSE_NAMES, Dense, pooling_of
from airllm.architectures.read_gguf import gguf_config, gguf_keys
from airllm.architectures.recurrent import DeltaRule, Mamba2
from airllm.architectures.tensor_names import NamedTensors, gguf_name, layer_names, shared_names
from airllm.convert.delta_rule_to_gguf import delta_sources, in_gguf
from airllm.convert.mamba_to_gguf import is_mamba_vector, mamba_in_gguf, mamba_vector
from airllm.convert.multipliers_to_gguf import multiplier, without_multipliers
from airllm.convert.tokenizer_to_gguf import tokenizer_keys
from airllm.files.gguf_writer import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, Key, Source
from airllm.files.safetensors import SafetensorsFolder
from airllm.files.weight_file import ModelFileError, Stored
from airllm.formats import Quantized
from airllm.memory.layers import split_heads
from airllm.ops.rope_scaling import frequencies

if TYPE_CHECKING:
    from airllm.text.chat_template import ChatTemplate

_AS_FACTORS = ("llama3", "proportional")  # scalings that GGUF files store as a tensor of divisors
# Fields that say how a folder stores weights; a GGUF file stores them otherwise.
_OF_FOLDERS = ("norm_offset", "experts_by_columns", "joined_kv", "fused_up", "lacks_output")
_WITH_DENSE = "gemma-embedding"  # the architecture whose GGUF files have matrices after the pooling


def folder_source(folder: SafetensorsFolder, config: ModelConfig) -> tuple[list[Key], list[Source]]:
    """The keys and tensors. Raises ModelFileError for a model that a GGUF file cannot express."""
    from airllm.text.chat_template import folder_chat_template  # needs Jinja, which GGUF files do not

    sources = list(_sources(folder, config))
    keys = list(_config_keys(folder.path, config))
    _check(folder.path, config, keys, sources)
    line_pieces = architecture_named(config.architecture).line_pieces
    keys += _pooling_keys(folder, config)
    sources += _dense_sources(folder, config)
    keys += tokenizer_keys(folder.path, config.vocabulary, line_pieces)
    if template := folder_chat_template(folder.path):
        keys += _template_keys(template)
    return keys, sources


# ------------------------------------------------------------------------------------------------ keys


def _template_keys(template: ChatTemplate) -> Iterator[Key]:
    """The template, and the one for tools under the name that it has in a folder."""
    yield Key("tokenizer.chat_template", template.source, STRING)
    if template.with_tools:
        yield Key("tokenizer.chat_templates", ["tool_use"], (*ARRAY, *STRING))
        yield Key("tokenizer.chat_template.tool_use", template.with_tools.source, STRING)


def _dense_of(folder: SafetensorsFolder, c: ModelConfig) -> Iterator[tuple[str, Dense]]:
    """The matrices after the pooling, with their names in a GGUF file."""
    pooling = pooling_of(folder)
    dense = pooling.dense if pooling else ()
    plain = all(not each.bias and not each.activation for each in dense)
    if dense and not (c.architecture == _WITH_DENSE and plain and len(dense) == len(DENSE_NAMES)):
        expected = f"{len(DENSE_NAMES)} without bias and function, in a model of {_WITH_DENSE}, or none"
        raise ModelFileError(folder.path / "modules.json", "the modules Dense", "are others", expected)
    yield from zip(DENSE_NAMES, dense, strict=False)


def _pooling_keys(folder: SafetensorsFolder, c: ModelConfig) -> Iterator[Key]:
    for name, each in _dense_of(folder, c):
        yield Key(f"{c.architecture}.{name}_feat_in", each.narrow, UINT32)
        yield Key(f"{c.architecture}.{name}_feat_out", each.wide, UINT32)
    if pooling := pooling_of(folder):
        if not pooling.normalize:
            found = "do not normalize embeddings, which a GGUF file cannot say"
            raise ModelFileError(folder.path / "modules.json", "the modules", found, "a module Normalize")
        yield Key(f"{c.architecture}.pooling_type", pooling.gguf, UINT32)
    if c.encoding:
        yield Key(f"{c.architecture}.attention.causal", False, BOOL)


def _config_keys(folder: Path, c: ModelConfig) -> Iterator[Key]:
    yield Key("general.name", folder.resolve().name, STRING)
    for name, value in gguf_keys(without_multipliers(c)).items():
        types = (*ARRAY, *_ITEMS[type(value[0])]) if isinstance(value, list) else _TYPES[type(value)]
        yield Key(f"{c.architecture}.{name}", value, types)


_ITEMS: dict[type, tuple[int, ...]] = {bool: BOOL, int: INT32}
_TYPES: dict[type, tuple[int, ...]] = {bool: BOOL, int: UINT32, float: FLOAT32, str: STRING}


@dataclasses.dataclass(frozen=True)
class _Read:
    """What `gguf_config` reads, before there is a file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Source]


def _check(folder: Path, config: ModelConfig, keys: Iterable[Key], sources: Iterable[Source]) -> None:
    metadata = {key.name: np.array(key.value) if len(key.types) > 1 else key.value for key in keys}
    metadata["general.architecture"] = config.architecture
    read = gguf_config(_Read(folder, metadata, {each.name: each for each in sources}))
    config = without_multipliers(config)
    for field in dataclasses.fields(ModelConfig):
        expected, found = getattr(config, field.name), getattr(read, field.name)
        if isinstance(expected, DeltaRule):
            expected = in_gguf(config.architecture, expected)
        elif isinstance(expected, Mamba2):
            expected = mamba_in_gguf(expected)
        if field.name in _OF_FOLDERS or _equal(expected, found):
            continue
        what = f"cannot be stored in a GGUF file: it would be read as {found}"
        raise ModelFileError(folder / "config.json", f"the model's {field.name}, {expected},", what)


def _equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=1e-6)
    if isinstance(expected, Rope) and isinstance(found, Rope):
        return _equal_ropes(expected, found)
    return expected == found


def _equal_ropes(expected: Rope, found: Rope) -> bool:
    scaling, read = dict(expected.scaling or {}), dict(found.scaling or {})
    if expected.dim != found.dim or not _equal(expected.theta, found.theta):
        return False
    if scaling.get("rope_type") in _AS_FACTORS:
        return not read
    if scaling.get("rope_type") == "longrope":
        key = "original_max_position_embeddings"
        return read["rope_type"] == "longrope" and read[key] == scaling[key]
    angles = [frequencies(expected.dim, expected.theta, each) for each in (scaling, read)]
    return all(np.allclose(a, b, 1e-6) for a, b in zip(*angles, strict=True))


# ------------------------------------------------------------------------------------------------ tensors


def _sources(folder: SafetensorsFolder, c: ModelConfig) -> Iterator[Source]:
    tensors, architecture = NamedTensors(folder, c), architecture_named(c.architecture)
    rotary = architecture.rotary
    reorder = rotary.neighbours and not rotary.neighbours_in_folders
    for name in shared_names(c):
        yield _source(tensors, name, gguf_name(architecture, name), c)
    if (c.rope.scaling or {}).get("rope_type") in _AS_FACTORS:
        yield _divisors(c)
    yield from _longrope_factors(c)
    for layer in range(c.layers):
        for name in layer_names(c, layer):
            if name.endswith(".delta.output") and isinstance(c.recurrent, DeltaRule):
                yield from delta_sources(tensors, c, layer, c.recurrent)
            elif ".delta." in name:
                continue
            elif is_mamba_vector(name) and isinstance(c.recurrent, Mamba2):
                vector = gguf_name(architecture, name.removesuffix("_log"))
                yield mamba_vector(vector, name, tensors.tensor(name), c.recurrent)
            elif name.endswith(".gate_up") and c.fused_up:
                yield from _gate_and_up(tensors, name)
            elif name.endswith(".attention.kv_b"):
                yield from _keys_and_values(tensors, name, c)
            elif not (experts := re.fullmatch(r"layers\.\d+\.experts\.(\d+)\.\w+", name)):
                yield _source(tensors, name, gguf_name(architecture, name), c, reorder)
            elif experts[1] == "0" and not (architecture.gguf_stacks.fused and name.endswith(".up")):
                fused = architecture.gguf_stacks.fused and name.endswith(".gate")
                yield _stack(tensors, name, gguf_name(architecture, name), c, fused)


def _source(tensors: NamedTensors, name: str, gguf: str, c: ModelConfig, neighbours: bool = False) -> Source:
    """A tensor under its GGUF name. `neighbours`: reorder the rows of q and k so that the values of a rotated
    pair are adjacent.
    """
    stored = tensors.tensor(name)
    if (factor := multiplier(tensors.weights.path, c, name, stored)) is not None:
        of = np.broadcast_to(np.float32(0), stored.shape)  # what comes has its shape and dtype
        return Source.of(gguf, of, lambda: [np.asarray(stored, np.float32) * factor])
    if name.endswith("norm") and c.norm_offset:
        offset = np.float32(c.norm_offset)
        return Source.of(
            gguf, np.asarray(stored, np.float32), lambda: [np.asarray(stored, np.float32) + offset]
        )
    part = name.rpartition(".")[2].removesuffix("_bias")
    if neighbours and ".attention." in name and part in ("q", "k"):
        sizes = c.sizes_of(int(name.split(".")[1]))
        heads = sizes.heads if part == "q" else sizes.kv_heads
        return Source.of(gguf, stored, lambda: [_neighbours(stored, heads)])
    if name.endswith(".filter") and stored.ndim == 3:
        stored = stored[:, 0]
    flat = stored[0] if stored.ndim == 2 and len(stored) == 1 else stored  # a router of one row
    return Source.of(gguf, flat, lambda: [flat])


def _keys_and_values(tensors: NamedTensors, name: str, c: ModelConfig) -> Iterator[Source]:
    """What makes keys and values of latents, as two tensors. The first is transposed, as floats."""
    mixer, architecture = c.layer(int(name.split(".")[1])).mixer, architecture_named(c.architecture)
    assert isinstance(mixer, Latent)
    for place, part in enumerate(("k_b", "v_b")):

        def of_heads(place: int = place) -> list[Stored]:
            return [split_heads(mixer, tensors.tensor(name))[place]]

        yield Source.of(gguf_name(architecture, name.replace("kv_b", part)), of_heads()[0], of_heads)


def _gate_and_up(tensors: NamedTensors, name: str) -> Iterator[Source]:
    """A gate and an up that a folder has as one matrix."""
    architecture, stored = architecture_named(tensors.config.architecture), tensors.tensor(name)
    half = stored.shape[0] // 2
    for part, some in (("gate", stored[:half]), ("up", stored[half:])):

        def one(some: Stored = some) -> list[Stored]:
            return [some]

        yield Source.of(gguf_name(architecture, name.removesuffix("gate_up") + part), some, one)


def _neighbours(stored: Stored, heads: int) -> Stored:
    """Reorder the rows of each head so that the values of a rotated pair are adjacent."""
    if isinstance(stored, Quantized):
        return Quantized(_reorder(stored.data, heads), stored.format)
    return _reorder(stored, heads)


def _reorder(stored: np.ndarray, heads: int) -> np.ndarray:
    halves = stored.reshape(heads, 2, -1, *stored.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(stored.shape)


def _stack(tensors: NamedTensors, name: str, gguf: str, c: ModelConfig, fused: bool) -> Source:
    """The matrices of all experts as one tensor; `name` is that of the first expert. If `fused`, each gate is
    followed by its up.
    """
    each = [name.replace(".experts.0.", f".experts.{i}.") for i in range(c.experts)]
    ups = ((gate, gate.removesuffix("gate") + "up") for gate in each)
    names = [part for pair in ups for part in pair] if fused else each
    first = tensors.tensor(name)

    def parts() -> Iterator[Stored]:
        return (tensors.tensor(name) for name in names)

    whole = Source.of(gguf, first, parts)
    shape = (c.experts, first.shape[0] * len(names) // c.experts, *first.shape[1:])
    return dataclasses.replace(whole, shape=shape, nbytes=len(names) * first.nbytes)


def _longrope_factors(c: ModelConfig) -> Iterator[Source]:
    for side in ("long", "short"):
        if (factors := (c.rope.scaling or {}).get(f"{side}_factor")) is not None:
            yield _vector(f"rope_factors_{side}.weight", factors)


def _vector(name: str, values: Any) -> Source:
    array = np.asarray(values, np.float32)
    return Source.of(name, array, lambda: [array])


def _dense_sources(folder: SafetensorsFolder, c: ModelConfig) -> Iterator[Source]:
    for name, each in _dense_of(folder, c):
        with SafetensorsFolder(folder.path / each.path) as own:
            yield _vector(f"{name}.weight", np.array(own.tensor("linear.weight"), np.float32))


def _divisors(c: ModelConfig) -> Source:
    """The divisor of each pair's angle. For one that does not rotate, it is so large that the angle is 0."""
    plain, _ = frequencies(c.rope.dim, c.rope.theta, None)
    scaled, _ = frequencies(c.rope.dim, c.rope.theta, dict(c.rope.scaling or {}))
    return _vector(
        "rope_freqs.weight", np.divide(plain, scaled, out=np.full_like(plain, 1e30), where=scaled > 0)
    )
