"""Reads and checks the values of a configuration by key. Errors name the file and the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.files.weight_file import ModelFileError

MOST = 1 << 24  # of any size: larger than any model; the file's own size bounds what is in memory
MOST_LAYERS = 4096


class Values:
    """Checked values by key. Errors are ModelFileErrors. All keys begin with `under`."""

    def __init__(self, path: Path, values: Mapping[str, Any], under: str = ""):
        self.path, self.values, self.under = path, values, under

    def error(self, key: str, found: str, expected: str) -> ModelFileError:
        return ModelFileError(self.path, f"key {self.under}{key}", found, expected)

    def get(self, key: str, kinds: tuple[type, ...], expected: str, default: Any) -> Any:
        value = self.values.get(self.under + key)
        if value is None:  # a missing key or JSON's null
            if default is ...:
                raise self.error(key, "is missing", expected)
            return default
        if type(value) not in kinds:
            raise self.error(key, f"has value {value!r}", expected)
        return value

    def whole(self, key: str, default: Any = ..., most: int = MOST, least: int = 1) -> Any:
        """A whole number from `least` to `most`."""
        value = self.get(key, (int,), expected := f"a whole number from {least} to {most}", default)
        if value is not default and not least <= value <= most:
            raise self.error(key, f"has value {value}", expected)
        return value

    def alike(self, key: str, default: Any = ..., most: int = MOST) -> Any:
        """A whole number from 1 to `most`, or a list that has the same one for each layer."""
        found = self.raw(key)
        if not isinstance(found, list):
            return self.whole(key, default, most)
        if not found or any(each != found[0] or type(each) is not int for each in found):
            expected = "a whole number, or the same one for each layer"
            raise self.error(key, f"has items {found[:8]}", expected)
        return Values(self.path, {self.under + key: found[0]}, self.under).whole(key, default, most)

    def wholes(self, key: str, count: int, least: int = 1) -> list[int] | None:
        """Whole numbers from `least` to `MOST`, as many as `count`; None if the value is no array."""
        value = self.raw(key)
        if not isinstance(value, np.ndarray):
            return None
        if (
            len(value) != count
            or value.dtype.kind not in "iu"
            or not all(least <= each <= MOST for each in value)
        ):
            expected = f"{count} whole numbers from {least} to {MOST}, one for each layer"
            raise self.error(key, f"has {len(value)} items {value[:8].tolist()}", expected)
        return [int(each) for each in value]

    def number(self, key: str, default: Any = ...) -> Any:
        """A finite number above 0."""
        value = self.get(key, (int, float), expected := "a number above 0", default)
        if value is default:
            return value if value is None else float(value)
        try:
            number = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            number = float("inf")
        if not 0 < number < float("inf"):
            raise self.error(key, f"has value {value}", expected)
        return number

    def flag(self, key: str, default: Any = ...) -> bool:
        return self.get(key, (bool,), "true or false", default)

    def text(self, key: str, default: Any = ...) -> Any:
        return self.get(key, (str,), "a text", default)

    def one_of(self, key: str, default: Any = ..., *, known: Mapping[str, Any]) -> Any:
        """The entry of `known` for a text, or the default."""
        value = self.text(key, None if default is not ... else ...)
        if value is None:
            return default
        if value not in known:
            raise self.error(key, f"has value {value!r}", f"one of {', '.join(known)}")
        return known[value]

    def raw(self, key: str) -> Any:
        """The unchecked value; None if there is none."""
        return self.values.get(self.under + key)

    def is_zero(self, key: str) -> bool:
        """Whether the value is the number 0, which some files use for "none"."""
        value = self.raw(key)
        return type(value) in (int, float) and value == 0

    def __contains__(self, key: str) -> bool:
        """Whether the key is present, even if its value is null."""
        return self.under + key in self.values

    def below(self, key: str) -> Values | None:
        """The values of a nested object; None if there is none."""
        values, under = self.get(key, (dict,), "an object", None), f"{self.under}{key}."
        return Values(self.path, {under + k: v for k, v in values.items()}, under) if values else None


def every_layer(values: Values, layers: int) -> tuple[bool, ...]:
    """That all layers have something, such as experts."""
    return (True,) * layers


def kinds_of_layers(values: Values, known: Iterable[str], layers: int) -> list[str]:
    """The list `layer_types`, which has one of the `known` kinds for each layer. Empty if there is none."""
    types, known = values.get("layer_types", (list,), "a list of texts", None), tuple(known)
    if types is None:
        return []
    if len(types) != layers or any(type(each) is not str or each not in known for each in types):
        found = f"has {len(types)} items {sorted(set(map(str, types)))}"
        raise values.error("layer_types", found, f"{layers} of {', '.join(known)}")
    return types


def check_config(values: Values, keys: Mapping[str, str], rope_dim: str, config: ModelConfig) -> ModelConfig:
    """Check values against each other. `keys`: the file's key of each field; `rope_dim`: that of rope.dim."""

    def refuse(field: str, expected: str) -> ModelFileError:
        return values.error(keys[field], f"has value {getattr(config, field)}", expected)

    for of in map(config.sizes_of, range(config.layers)):
        if of.heads % of.kv_heads:
            found = f"has value {of.kv_heads}"
            raise values.error(keys["kv_heads"], found, f"a divisor of the {of.heads} heads")
    if config.head_dim % 2:
        raise refuse("head_dim", "an even number")
    for rope in (config.rope, config.local_rope or config.rope):
        if rope.dim % 2 or rope.dim > config.head_dim:
            found = f"rotates {rope.dim} values"
            raise values.error(rope_dim, found, f"an even number of at most {config.head_dim}")
    for i in range(config.layers):
        own, most = config.rope_of(i), config.sizes_of(i).head_dim
        if own and own.dim > most:
            raise values.error(rope_dim, f"rotates {own.dim} values of layer {i}", f"at most its {most}")
    if config.experts_used > config.experts:
        raise refuse("experts_used", f"at most the {config.experts} experts")
    if config.experts % config.expert_groups:
        raise refuse("expert_groups", f"a divisor of the {config.experts} experts")
    size = config.experts // config.expert_groups
    if not config.experts_used <= config.expert_groups_used * size <= config.experts:
        raise refuse("expert_groups_used", f"groups of {size} that have {config.experts_used} experts")
    return config
