"""Reads and writes the keys of files for sliding windows: which layers have one, and how wide it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.architectures.declaration import Architecture, Window
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import Values, kinds_of_layers

Windows = tuple[int | None, ...]
_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_FOLDER_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")


def all_but_every(pattern: int, window: int | None, layers: int, full_first: bool = False) -> Windows:
    """A window in all layers except the last of every `pattern`, or the first; in all layers if it is 0."""
    full = 0 if full_first else pattern - 1
    return tuple(None if pattern and i % pattern == full else window for i in range(layers))


def folder_windows(
    architecture: Architecture, values: Values, nope: tuple[bool, ...], layers: int
) -> Windows:
    """The window of each layer by config.json. `nope`: the layers without rotation."""
    rule = architecture.window
    if rule is None:
        return (None,) * layers
    on = not rule.switch or values.flag(rule.switch, False)
    if not on and not rule.switched_by_list:
        return (None,) * layers
    key = "attention_chunk_size" if rule.chunked else "sliding_window"
    width = values.whole(key, None if key in values else rule.default)
    kind = "chunked_attention" if rule.chunked else "sliding_attention"
    if rule.listed and (kinds := kinds_of_layers(values, ("full_attention", kind), layers)):
        return tuple(width if each == kind else None for each in kinds)
    if not on:
        return (None,) * layers
    if rule.chunked:
        return tuple(None if each else width for each in nope)
    if rule.nope_only:
        return tuple(width if each else None for each in nope)
    return _by_place(rule, values, width, layers)


def _by_place(rule: Window, values: Values, width: int | None, layers: int) -> Windows:
    """Windows by the position of a layer."""
    if rule.first is None and rule.until is None:
        pattern = next((found for key in _FOLDER_PATTERNS if (found := values.whole(key, 0))), 0)
        return all_but_every(pattern or rule.all_but_every, width, layers, rule.full_first)
    bound = rule.until if rule.first is None else rule.first
    bound = values.get("max_window_layers", (int,), "a whole number", bound)
    some = range(bound) if rule.first is None else range(bound, layers)
    windows = all_but_every(rule.all_but_every, width, layers)
    return tuple(each if i in some else None for i, each in enumerate(windows))


def gguf_windows(architecture: Architecture, values: Values, layers: int) -> Windows:
    """The window of each layer by a GGUF file's keys."""
    rule = architecture.window or Window()
    if rule.chunked and values.is_zero(_WINDOW):
        raise values.error(_WINDOW, "has value 0", "the width of chunks")
    width = None if values.is_zero(_WINDOW) else values.whole(_WINDOW, rule.in_gguf)
    pattern = values.raw(_PATTERN)
    if not isinstance(pattern, np.ndarray):
        pattern = values.whole(_PATTERN, rule.all_but_every)
        return all_but_every(pattern, width, layers, rule.full_first)
    if len(pattern) != layers:
        raise values.error(_PATTERN, f"has {len(pattern)} items", f"{layers}, one for each layer")
    return tuple(width if windowed else None for windowed in pattern)


def write_windows(architecture: Architecture, config: ModelConfig) -> dict[str, Any]:
    """The keys of a model's windows."""
    rule = architecture.window or Window()
    width = max((each for each in config.windows if each), default=None)
    if width is None:
        return {}
    if config.windows == all_but_every(rule.all_but_every, width, config.layers, rule.full_first):
        return {_WINDOW: width}
    return {_WINDOW: width, _PATTERN: [bool(each) for each in config.windows]}
