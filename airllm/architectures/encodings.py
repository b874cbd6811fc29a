"""Reads what an encoder has beside its layers: tables of positions and of types, and its norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airllm.architectures.declaration import Architecture, Encoder
from airllm.architectures.layer_spec import Encoding
from airllm.architectures.values import Values


def folder_encoding(architecture: Architecture, values: Values) -> dict[str, Any]:
    """The fields of ModelConfig for an encoder, by config.json; none for another model."""
    rule = architecture.encoder
    if rule is None:
        return {}
    kind = values.text("position_embedding_type", "absolute")
    if rule.positions and kind != "absolute":
        raise values.error("position_embedding_type", f"has value {kind!r}", "absolute")
    types = values.whole("type_vocab_size", 2, least=0) if rule.token_types else 0
    return {"encoding": _encoding(rule, types, rule.skipped), "fused_qkv": rule.fused_qkv}


def gguf_encoding(architecture: Architecture, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same, by the tensors of a GGUF file. Its table of positions has no rows that are not used."""
    rule = architecture.encoder
    if rule is None:
        return {}
    types = tensors.get("token_types.weight") if rule.token_types else None
    fused = not architecture.fused and "blk.0.attn_qkv.weight" in tensors
    return {"encoding": _encoding(rule, types.shape[0] if types else 0), "fused_qkv": fused}


def _encoding(rule: Encoder, token_types: int, skipped: int = 0) -> Encoding:
    return Encoding(
        positions=rule.positions,
        skipped=skipped,
        token_types=token_types,
        embedding_norm=rule.embedding_norm,
        sum_norms=rule.sum_norms,
        bare_first=rule.bare_first,
    )
