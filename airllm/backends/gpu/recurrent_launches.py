"""The launches of mixers with a recurrent state: see `airllm.backends.device.recurrent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.gpu.launches import LEAST_GROUP, Launch, Plan

_GROUP, _MOST_GROUPS = 256, 2**16
# The arguments of each kernel in its order: arrays, those of which that are missing are null; counts; flags.
_ARRAYS = {
    "convolve": ("x", "taps", "bias", "state", "next_state", "out"),
    "delta_scan": (
        "mixed", "rates", "steps", "vectors", "taps", "bias", "inputs", "state", "next_inputs", "next_state",
        "out", "own",
    ),
    "state_scan": (
        "mixed", "steps", "vectors", "taps", "bias", "inputs", "state", "next_inputs", "next_state", "out",
        "own",
    ),
    "gated_norm": ("x", "gate", "weight", "out"),
}  # fmt: skip
_COUNTS = {
    "convolve": ("tokens", "channels", "count", "key_heads", "key_dim", "wide", "x_from", "x_step"),
    "delta_scan": (
        "tokens", "key_heads", "value_heads", "key_dim", "value_dim", "columns", "channels", "count",
        "mixed_from", "mixed_step", "rates_from", "rates_step", "steps_from", "steps_step", "out_from",
    ),
    "state_scan": (
        "tokens", "heads", "groups", "head_dim", "state_dim", "columns", "channels", "count", "mixed_from",
        "mixed_step", "steps_from", "steps_step", "out_from",
    ),
    "gated_norm": (
        "rows", "groups", "dim", "x_from", "gate_from", "gate_step", "gate_group", "gate_each",
        "weight_step",
    ),
}  # fmt: skip
_FLAGS = {
    "convolve": ("gated", "activated"),
    "delta_scan": ("tiled", "joined"),
    "gated_norm": ("by_sigmoid", "norm_first"),
}
LAUNCHES = tuple(_ARRAYS)


def plan(
    op: str, arrays: Mapping[str, Any], outs: Mapping[str, Any], n: Mapping[str, Any], form: str
) -> Plan:
    """One of LAUNCHES, with the numbers `n`."""
    wide, tasks = _grid(op, n)
    group = 1 if form == "cpu" else min(_GROUP, max(LEAST_GROUP, 1 << (wide - 1).bit_length()))
    columns = wide if form == "cpu" else group
    if op.endswith("_scan"):
        tasks *= -(-wide // columns)
    numbers = dict(n) | {"columns": columns}
    groups = min(tasks, _MOST_GROUPS)
    own = op.endswith("_scan") and "taps" in arrays
    scratch = {"own": 4 * groups * (_convolved(op, n) + columns)} if own else {}
    arguments = (
        *(name if name in arrays or name in outs or name in scratch else None for name in _ARRAYS[op]),
        *(np.uint64(numbers[name]) for name in _COUNTS[op]),
        *((np.float32(n["eps"]),) if "eps" in n else ()),
        *(np.uint32(numbers[name]) for name in _FLAGS.get(op, ())),
    )
    return Plan((Launch("recurrent", op, arguments, groups, group),), scratch)


def _convolved(op: str, n: Mapping[str, Any]) -> int:
    """Values of a head, besides its columns, that come from a convolution: two vectors."""
    return 2 * (n["key_dim"] if op == "delta_scan" else n["state_dim"])


def _grid(op: str, n: Mapping[str, Any]) -> tuple[int, int]:
    """How many elements the work-items of a group can take at once, and how many groups have work; of scans,
    if a group takes a whole head.
    """
    if op == "convolve":
        return n["channels"], n["tokens"] + n["count"] - 1
    if op == "gated_norm":
        return n["dim"], n["rows"] * n["groups"]
    return (n["value_dim"], n["value_heads"]) if op == "delta_scan" else (n["head_dim"], n["heads"])
