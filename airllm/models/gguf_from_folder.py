"""A Hugging Face folder as the keys and tensors of a GGUF file, in llama.cpp's conventions.

What is made is read again before it is written, by the same code that reads any GGUF file: a configuration
that GGUF's keys cannot say is refused, and not written as something else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from airllm.formats import Quantized
from airllm.models.config import ModelConfig, Rope
from airllm.models.config_values import PATTERN, every
from airllm.models.gguf_config import gguf_config
from airllm.models.gguf_tokenizer_keys import tokenizer_keys
from airllm.models.gguf_writing import ARRAY, BOOL, FLOAT32, STRING, UINT32, Key, Source
from airllm.models.rotation import longrope_warmth
from airllm.models.safetensors_folder import SafetensorsFolder
from airllm.models.tensor_names import NamedTensors, gguf_name, layer_names, shared_names
from airllm.models.weights import ModelFileError, Stored
from airllm.rope import frequencies


def folder_source(folder: SafetensorsFolder, config: ModelConfig) -> tuple[list[Key], list[Source]]:
    """The keys and tensors. Raises ModelFileError for a model that cannot be said in a GGUF file."""
    from airllm.models.chat import folder_chat_template  # needs a package that GGUF files do without

    sources = list(_sources(folder, config))
    keys = list(_config_keys(folder.path, config))
    _check(folder.path, config, keys, sources)
    keys += tokenizer_keys(folder.path, config.vocabulary)
    if template := folder_chat_template(folder.path):
        keys.append(Key("tokenizer.chat_template", template.source, STRING))
    return keys, sources


# ------------------------------------------------------------------------------------------------ keys


def _config_keys(folder: Path, c: ModelConfig) -> Iterator[Key]:
    yield Key("general.name", folder.resolve().name, STRING)
    for name, value in _values(c).items():
        types = (*ARRAY, *BOOL) if isinstance(value, list) else _TYPES[type(value)]
        yield Key(f"{c.architecture}.{name}", value, types)


_TYPES: dict[type, tuple[int, ...]] = {bool: BOOL, int: UINT32, float: FLOAT32, str: STRING}


def _values(c: ModelConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "block_count": c.layers,
        "context_length": c.context,
        "embedding_length": c.width,
        "feed_forward_length": c.feed_forward,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "vocab_size": c.vocabulary,
        "rope.freq_base": c.rope.theta,
        "rope.dimension_count": c.rope.dim,
    }
    if c.local_rope:
        found["rope.freq_base_swa"] = c.local_rope.theta
    if not math.isclose(c.attention_scale, c.head_dim**-0.5):
        found["attention.scale"] = c.attention_scale
    if c.attention_softcap:
        found["attn_logit_softcapping"] = c.attention_softcap
    if c.logit_softcap:
        found["final_logit_softcapping"] = c.logit_softcap
    return found | _window_values(c) | _expert_values(c) | _scaling_values(c)


def _window_values(c: ModelConfig) -> dict[str, Any]:
    window = max((window for window in c.windows if window), default=None)
    if window is None:
        return {}
    regular = c.windows == every(PATTERN.get(c.architecture, 0), window, c.layers)
    pattern = {} if regular else {"attention.sliding_window_pattern": [bool(each) for each in c.windows]}
    return {"attention.sliding_window": window} | pattern


def _expert_values(c: ModelConfig) -> dict[str, Any]:
    if not c.experts:
        return {}
    return {
        "expert_count": c.experts,
        "expert_used_count": c.experts_used,
        "expert_feed_forward_length": c.expert_feed_forward,
        "expert_weights_norm": c.normalize_experts,
    }


def _scaling_values(c: ModelConfig) -> dict[str, Any]:
    """The factors of Llama 3 and of longrope are tensors."""
    scaling = dict(c.rope.scaling or {})
    kind = scaling.get("rope_type")
    if kind not in ("linear", "yarn", "longrope"):
        return {}
    if kind == "longrope":
        given = {"attn_factor": longrope_warmth(scaling, c.context)}
    else:
        names = {"factor": "factor"}
        if kind == "yarn":
            names |= {"attention_factor": "yarn_attn_factor"}
            names |= {f"beta_{side}": f"yarn_beta_{side}" for side in ("fast", "slow")}
        given = {name: float(scaling[key]) for key, name in names.items() if scaling.get(key) is not None}
    if kind != "linear":
        given["original_context_length"] = int(scaling["original_max_position_embeddings"])
    return {f"rope.scaling.{name}": value for name, value in ({"type": kind} | given).items()}


@dataclasses.dataclass(frozen=True)
class _Read:
    """What a configuration is read from, before there is a file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Source]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


def _check(folder: Path, config: ModelConfig, keys: Iterable[Key], sources: Iterable[Source]) -> None:
    metadata = {key.name: np.array(key.value) if len(key.types) > 1 else key.value for key in keys}
    metadata["general.architecture"] = config.architecture
    read = gguf_config(_Read(folder, metadata, {each.name: each for each in sources}))  # type: ignore[arg-type]
    for field in dataclasses.fields(ModelConfig):
        wanted, found = getattr(config, field.name), getattr(read, field.name)
        if field.name == "norm_offset" or _same(wanted, found):
            continue
        what = f"cannot be said in a GGUF file: it would be read as {found}"
        raise ModelFileError(folder / "config.json", f"the model's {field.name}, {wanted},", what)


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(wanted, found, rel_tol=1e-6)
    if isinstance(wanted, Rope) and isinstance(found, Rope):
        return _same_rope(wanted, found)
    return wanted == found


def _same_rope(wanted: Rope, found: Rope) -> bool:
    scaling, read = dict(wanted.scaling or {}), dict(found.scaling or {})
    if wanted.dim != found.dim or not _same(wanted.theta, found.theta):
        return False
    if scaling.get("rope_type") == "llama3":
        return not read
    if scaling.get("rope_type") == "longrope":
        key = "original_max_position_embeddings"
        return read["rope_type"] == "longrope" and read[key] == scaling[key]
    angles = [frequencies(wanted.dim, wanted.theta, each) for each in (scaling, read)]
    return all(np.allclose(a, b, 1e-6) for a, b in zip(*angles, strict=True))


# ------------------------------------------------------------------------------------------------ tensors


def _sources(folder: SafetensorsFolder, c: ModelConfig) -> Iterator[Source]:
    tensors = NamedTensors(folder, c)
    for name in shared_names(c):
        yield _source(tensors, name, gguf_name(name), c)
    if (c.rope.scaling or {}).get("rope_type") == "llama3":
        yield _llama3_factors(c)
    yield from _longrope_factors(c)
    for layer in range(c.layers):
        names = layer_names(c, layer)
        yield from (
            _source(tensors, n, gguf_name(n), c) for n in names if ".experts." not in n or "router" in n
        )
        if c.is_moe(layer):
            for part in ("gate", "up", "down"):
                yield _stack(tensors, layer, part, c)


def _source(tensors: NamedTensors, name: str, gguf: str, c: ModelConfig) -> Source:
    stored = tensors.tensor(name)
    assert not isinstance(stored, Quantized)
    if name.endswith("norm") and c.norm_offset:
        offset = np.float32(c.norm_offset)
        return Source.of(
            gguf, np.asarray(stored, np.float32), lambda: [np.asarray(stored, np.float32) + offset]
        )
    part = name.rpartition(".")[2].removesuffix("_bias")
    if c.architecture == "llama" and ".attention." in name and part in ("q", "k"):
        heads = c.heads if part == "q" else c.kv_heads
        return Source.of(gguf, stored, lambda: [_neighbours(stored, heads)])
    return Source.of(gguf, stored, lambda: [stored])


def _neighbours(stored: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in the order in which those that turn together are neighbours."""
    halves = stored.reshape(heads, 2, -1, *stored.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(stored.shape)


def _stack(tensors: NamedTensors, layer: int, part: str, c: ModelConfig) -> Source:
    names = [f"layers.{layer}.experts.{i}.{part}" for i in range(c.experts)]
    first = tensors.tensor(names[0])

    def parts() -> Iterator[Stored]:
        return (tensors.tensor(name) for name in names)

    whole = Source.of(gguf_name(names[0]), first, parts)
    return dataclasses.replace(whole, shape=(c.experts, *first.shape), nbytes=c.experts * first.nbytes)


def _longrope_factors(c: ModelConfig) -> Iterator[Source]:
    for side in ("long", "short"):
        if (factors := (c.rope.scaling or {}).get(f"{side}_factor")) is not None:
            yield _vector(f"rope_factors_{side}.weight", factors)


def _vector(name: str, values: Any) -> Source:
    array = np.asarray(values, np.float32)
    return Source.of(name, array, lambda: [array])


def _llama3_factors(c: ModelConfig) -> Source:
    plain, _ = frequencies(c.rope.dim, c.rope.theta, None)
    scaled, _ = frequencies(c.rope.dim, c.rope.theta, dict(c.rope.scaling or {}))
    return _vector("rope_freqs.weight", plain / scaled)
