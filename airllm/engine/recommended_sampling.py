"""The sampling options that a model's files recommend."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from airllm.architectures.values import Values
from airllm.engine.sampling import Sampling
from airllm.files.gguf import GgufFile
from airllm.files.weight_file import WeightFile, read_json

# Names of `Sampling` -> keys of generation_config.json, keys of a GGUF file.
_KEYS = {
    "temperature": ("temperature", "general.sampling.temp"),
    "top_k": ("top_k", "general.sampling.top_k"),
    "top_p": ("top_p", "general.sampling.top_p"),
    "min_p": ("min_p", "general.sampling.min_p"),
    "repetition_penalty": ("repetition_penalty", "general.sampling.penalty_repeat"),
}


def recommended_sampling(path: str | PathLike[str]) -> dict[str, Any]:
    """The options of `generate` that a model's files recommend; empty if there are none.

    Raises ModelFileError for impossible values.
    """
    path = Path(path)
    if path.is_dir():
        file = path / "generation_config.json"
        return _parse(Values(file, read_json(file)), 0) if file.is_file() else {}
    with GgufFile(path) as opened:
        return recommended_by(opened)


def recommended_by(weights: WeightFile) -> dict[str, Any]:
    """The same for opened weights, so that a GGUF file is not read again."""
    if isinstance(weights, GgufFile):
        return _parse(Values(weights.path, weights.metadata), 1)
    return recommended_sampling(weights.path)


def _parse(values: Values, kind: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, keys in _KEYS.items():
        value = values.get(keys[kind], (int, float), "a number", None)
        if value is not None:
            found[name] = _check_value(values, keys[kind], name, value)
    penalty = {name: found.pop(name) for name in ["repetition_penalty"] if name in found}
    if values.flag("do_sample", bool(found)):
        return {"temperature": 1.0} | found | penalty
    return penalty | ({"temperature": 0.0} if "do_sample" in values.values else {})


def _check_value(values: Values, key: str, name: str, value: Any) -> Any:
    if name == "top_k":
        value = max(value, 0)  # -1 also means all tokens
    try:
        Sampling(**{name: value})
    except (TypeError, ValueError) as error:
        expected = str(error).partition("expected ")[2]
        raise values.error(key, f"has value {value!r}", expected) from None
    return value


def as_text(sampling: Mapping[str, Any]) -> str:
    """The options in one line, for people: "temperature 0.6, top-p 0.9"."""
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items())
