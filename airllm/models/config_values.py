"""Values of a configuration by key, checked: what is missing or wrong names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airllm.models.config import ModelConfig
from airllm.models.weights import ModelFileError

MOST = 1 << 24  # of any size: beyond what exists; what of it is in memory, the file's own size bounds
MOST_LAYERS = 4096
PATTERN = {"gemma2": 2, "gemma3": 6}  # every so many-th layer looks at everything, the others have a window


class Values:
    """Values by key, with checks; messages name file and key. `under`: what all keys begin with."""

    def __init__(self, path: Path, values: Mapping[str, Any], under: str = ""):
        self.path, self.values, self.under = path, values, under

    def error(self, key: str, found: str, expected: str) -> ModelFileError:
        return ModelFileError(self.path, f"key {self.under}{key}", found, expected)

    def get(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any) -> Any:
        value = self.values.get(self.under + key)
        if value is None:  # also JSON's null
            if default is ...:
                raise self.error(key, "is missing", wanted)
            return default
        if type(value) not in kinds:
            raise self.error(key, f"has value {value!r}", wanted)
        return value

    def whole(self, key: str, default: Any = ..., most: int = MOST) -> Any:
        """A whole number from 1 on."""
        value = self.get(key, (int,), wanted := f"a whole number from 1 to {most}", default)
        if value is not default and not 1 <= value <= most:
            raise self.error(key, f"has value {value}", wanted)
        return value

    def number(self, key: str, default: Any = ...) -> Any:
        """A number above 0."""
        value = self.get(key, (int, float), wanted := "a number above 0", default)
        if value is default:
            return value if value is None else float(value)
        try:
            number = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            number = float("inf")
        if not 0 < number < float("inf"):
            raise self.error(key, f"has value {value}", wanted)
        return number

    def flag(self, key: str, default: Any = ...) -> bool:
        return self.get(key, (bool,), "true or false", default)

    def text(self, key: str, default: Any = ...) -> Any:
        return self.get(key, (str,), "a text", default)

    def one_of(self, key: str, known: Mapping[str, Any], default: Any = ...) -> Any:
        """What a text stands for."""
        value = self.text(key, default)
        if value not in known:
            raise self.error(key, f"has value {value!r}", f"one of {', '.join(known)}")
        return known[value]

    def unless_null(self, key: str, default: Any) -> Any:
        """The default where the key is left out; None where it is there and null."""
        return None if self.under + key in self.values else default

    def below(self, key: str) -> Values | None:
        """The values of an object, if there is one."""
        values = self.get(key, (dict,), "an object", None)
        return values and Values(self.path, {f"{key}.{k}": v for k, v in values.items()}, f"{key}.")


def head_dim_of(values: Values, key: str, width: int, heads: int, otherwise: int | None = None) -> int:
    """The values of a head; where the file does not say, `otherwise`, or its part of the width."""
    if (found := values.whole(key, otherwise or width // heads)) < 1:
        raise values.error(key, "is missing", f"it, where {heads} heads share a width of {width}")
    return found


def checked(values: Values, keys: Mapping[str, str], config: ModelConfig) -> ModelConfig:
    """What no single value can tell; `keys`: how the file calls what is said here."""

    def refuse(field: str, expected: str) -> ModelFileError:
        return values.error(keys[field], f"has value {getattr(config, field)}", expected)

    if config.heads % config.kv_heads:
        raise refuse("kv_heads", f"a divisor of the {config.heads} heads")
    if config.head_dim % 2:
        raise refuse("head_dim", "an even number")
    if config.rope.dim % 2 or config.rope.dim > config.head_dim:
        found = f"makes {config.rope.dim} values turn"
        raise values.error(keys["rope_dim"], found, f"an even number of at most {config.head_dim}")
    if config.experts_used > config.experts:
        raise refuse("experts_used", f"at most the {config.experts} experts")
    return config


def every(pattern: int, window: int | None, layers: int) -> tuple[int | None, ...]:
    """A window in all layers but every `pattern`-th; in all of them for 0."""
    return tuple(None if pattern and (i + 1) % pattern == 0 else window for i in range(layers))
