"""Reads a model's configuration from a Hugging Face folder's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airllm.architectures.declaration import Architecture
from airllm.architectures.encodings import folder_encoding
from airllm.architectures.families import (
    architecture_of_model_type,
    marked_architecture,
    types_of_folders,
    with_part,
)
from airllm.architectures.keys import keys_of
from airllm.architectures.latent import latent_fields, latent_ropes
from airllm.architectures.layer_sizes import folder_head_dims, folder_sizes
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent_keys import folder_recurrent
from airllm.architectures.ropes import ROPE_DIM, drop_unused, folder_ropes, nope_beside_windows
from airllm.architectures.values import Values, check_config
from airllm.architectures.windows import folder_windows
from airllm.files.published.methods import quantization_of
from airllm.files.weight_file import read_json

# Flags that must not be set -> what is expected instead.
_REFUSED = {
    "use_bidirectional_attention": "false: a model that writes text",
}


def folder_config(folder: Path) -> ModelConfig:
    """The configuration in a folder's config.json. Raises ModelFileError or OSError."""
    whole = _open(folder)
    architecture, values = _text_part(whole)
    for flag, expected in {**({} if architecture.encoder else _REFUSED), **architecture.refused}.items():
        if values.flag(flag, False):
            raise values.error(flag, "is true", expected)
    found = _numbers(architecture, values)
    layers = found["layers"]
    ropes = folder_ropes(
        architecture, values, *folder_head_dims(architecture, values, found["head_dim"]), layers
    )
    if architecture.latent:
        ropes = latent_ropes(values, ropes)
    windows = folder_windows(architecture, values, ropes.get("nope_layers", ()), layers)
    ropes |= nope_beside_windows(architecture, windows)
    sizes = folder_sizes(architecture, values, found, windows)
    moe_layers = architecture.experts(values, layers) if architecture.experts else ()
    if architecture.latent:
        found |= latent_fields(found, ropes["rope"])
    config = ModelConfig(
        **found,
        **sizes,
        **drop_unused(ropes, windows),
        **_fixed(architecture, values),
        windows=windows,
        norm_offset=architecture.norms.folder_less,
        qkv_bias=_has_bias(values, architecture.biases.qkv),
        output_bias=_has_bias(values, architecture.biases.output),
        mlp_bias=_has_bias(values, architecture.biases.feed_forward),
        router_bias=architecture.biases.router,
        selection_bias=_has_bias(values, architecture.biases.selection),
        expert_bias=architecture.biases.experts,
        experts_by_columns=_has_columns(architecture, whole),
        joined_kv=architecture.latent,
        fused_up=architecture.folder_fused_up,
        tied_embeddings=bool(architecture.encoder)
        or whole.flag("tie_word_embeddings", values.flag("tie_word_embeddings", architecture.tied)),
        **folder_encoding(architecture, values),
        **folder_recurrent(architecture, values, layers),
        halves=architecture.halves(values, layers) if architecture.halves else (),
        moe_layers=moe_layers,
        dense_and_experts=architecture.dense_and_experts and any(moe_layers),
    )
    return check_config(
        values, {name: _name(key.folder) for name, key in keys_of(architecture)}, ROPE_DIM["folder"], config
    )


def architecture_of_folder(folder: Path) -> Architecture:
    """The architecture that config.json names. Raises ModelFileError if it is not supported."""
    return _text_part(_open(folder))[0]


def _open(folder: Path) -> Values:
    path = folder / "config.json"
    whole = Values(path, read_json(path))
    quantization_of(path, whole.values)
    return whole


def _text_part(whole: Values) -> tuple[Architecture, Values]:
    """The architecture and the configuration of the text part, also of a vision model."""
    values, kind = whole, whole.text("model_type")
    if parts := with_part(kind):
        values = whole.below("text_config") or whole
        kind = values.text("model_type", kind)
        kind = parts[0].model_types[0] if kind == whole.raw("model_type") else kind
    marked = marked_architecture(kind, values)
    if (found := marked or architecture_of_model_type(kind)) is None:
        raise values.error("model_type", f"has value {kind!r}", f"one of {', '.join(types_of_folders())}")
    return found, _rename(values, found.renamed)


def _rename(values: Values, renamed: Mapping[str, str]) -> Values:
    """The same values under the keys that are read."""
    more = {values.under + new: values.raw(old) for old, new in renamed.items() if old in values}
    return Values(values.path, {**more, **values.values}, values.under) if more else values


def _numbers(architecture: Architecture, values: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, key in keys_of(architecture):
        if not key.moe or architecture.experts:
            default = architecture.folder_defaults.get(name, key.default)
            found[name] = key.read_folder(values, default, found)
    return found


def _fixed(architecture: Architecture, values: Values) -> dict[str, Any]:
    """What the architecture says, without norms of queries and keys that config.json turns off."""
    flag = architecture.norms.q_and_k_flag
    off = {"qk_norm": ""} if flag and not values.flag(*flag) else {}
    return architecture.fixed | off


def _has_bias(values: Values, bias: tuple[str, bool] | bool) -> bool:
    return bias if isinstance(bias, bool) else values.flag(*bias)


def _has_columns(architecture: Architecture, whole: Values) -> bool:
    """Whether a column of a stored expert has the weights of an output; not once it is converted."""
    stacks = architecture.folder_stacks
    return bool(stacks and stacks.transposed) and not quantization_of(whole.path, whole.values)


def _name(names: str | tuple[str, ...]) -> str:
    return names if isinstance(names, str) else names[0]
