"""Mixers with a recurrent state on a device: the convolution before a state, the scans of states, and the
gate after them. `airllm.engine.layers.recurrent` defines them for NumPy arrays.

A launch takes all tokens of a sequence in a pass, and leaves its new state on the device. Of one token, the
convolution is part of the scan.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from airllm.backends.device.residual import in_one_piece
from airllm.backends.device.tensor import Tensor

States = tuple[Any, Any]  # before the tokens, and after them, which is written


class DeltaHeads(NamedTuple):
    """The sizes of the gated delta rule: `airllm.architectures.recurrent.DeltaRule`."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool

    @property
    def values(self) -> int:
        """Values of a token in all heads."""
        return self.value_heads * self.value_dim

    @property
    def of_key_head(self) -> int:
        """Values of a token that belong to a key head."""
        return self.values // self.key_heads


class StateHeads(NamedTuple):
    """The sizes of a state space: `airllm.architectures.recurrent.Mamba2`."""

    heads: int
    groups: int
    head_dim: int
    state_dim: int

    @property
    def values(self) -> int:
        """Values of a token in all heads."""
        return self.heads * self.head_dim


class Convolution(NamedTuple):
    """The causal convolution (tokens, channels) of x with `taps` (channels, count), plus a bias, if given.
    With `joined`, a row of x has a query, a key, values, and as many gates, for each key head of these:
    channels are all queries, all keys, all values.
    """

    x: Any
    taps: Any
    bias: Any
    states: States
    joined: DeltaHeads | None = None


class Recurrence(Protocol):
    """What a device does with recurrent states. All arrays are float32."""

    def convolve(self, given: Convolution, activated: bool = False, gated: bool = False) -> Any:
        """The convolution, then by silu if `activated`. With `gated`, a row of x has first gates, second
        gates and inputs, `channels` each: what goes in, and what comes out, is multiplied by them.
        """

    def scan_delta(
        self,
        given: Convolution,
        rates: Any,
        steps: Any,
        decay: Any,
        bias: Any,
        states: States,
        heads: DeltaHeads,
    ) -> Any:
        """Answers (tokens, values) of the gated delta rule to queries, keys and values, the channels of a
        convolution by silu; the first two not normalized. The sigmoids of `rates` are the rates, and
        softplus(`steps` + `bias`) times `decay` the logarithms of decays, (tokens, value_heads) each.
        """

    def scan_states(
        self,
        given: Convolution,
        steps: Any,
        decay: Any,
        bias: Any,
        skip: Any,
        states: States,
        heads: StateHeads,
    ) -> Any:
        """What is read (tokens, values) of a state space by values, input and output vectors, the channels of
        a convolution by silu; plus values times `skip`. `steps` (tokens, heads) as in `scan_delta`.
        """

    def gate(self, x: Any, gate: Any) -> Any:
        """x (rows, ...) times the sigmoid of `gate`, of its shape: (rows, values)."""

    def gate_and_norm(self, x: Any, gate: Any, weight: Any, groups: int, eps: float, norm_first: bool) -> Any:
        """x (rows, values) times silu(gate), (rows, values) or (rows, parts, values of a part), by the norm
        of each of `groups` parts of a row; with `norm_first`, x by that norm, times silu(gate). `weight`: of
        a row, or of each part.
        """


class DeviceRecurrence:
    """`Recurrence` by the kernels of a `Place`."""

    def __init__(self, ops: Any):
        self._ops = ops

    def convolve(self, given: Convolution, activated: bool = False, gated: bool = False) -> Tensor:
        """As `Recurrence.convolve`."""
        state, next_state = given.states
        rows, joined, channels = self._rows("x", given.x), given.joined, given.taps.shape[0]
        numbers = rows.numbers | _sizes(given) | {
            "tokens": len(given.x), "gated": int(gated), "activated": int(activated),
            "key_heads": joined.key_heads if joined else 0, "key_dim": joined.key_dim if joined else 0,
            "wide": joined.of_key_head if joined else 0,
        }  # fmt: skip
        out = self._ops.empty((len(given.x), channels))
        arrays = {"x": rows.whole, "taps": given.taps, "bias": given.bias, "state": state}
        self._start("convolve", arrays, numbers, {"next_state": next_state, "out": out})
        return out

    def scan_delta(
        self,
        given: Convolution,
        rates: Tensor,
        steps: Tensor,
        decay: Tensor,
        bias: Tensor,
        states: States,
        heads: DeltaHeads,
    ) -> Tensor:
        """As `Recurrence.scan_delta`."""
        numbers = heads._asdict() | {"tiled": int(heads.tiled), "joined": int(given.joined is not None)}
        rows, vectors = {"rates": rates, "steps": steps}, self._together(decay, bias)
        return self._scan("delta_scan", given, rows, vectors, states, numbers, heads.values)

    def scan_states(
        self,
        given: Convolution,
        steps: Tensor,
        decay: Tensor,
        bias: Tensor,
        skip: Tensor,
        states: States,
        heads: StateHeads,
    ) -> Tensor:
        """As `Recurrence.scan_states`."""
        rows, vectors = {"steps": steps}, self._together(decay, bias, skip)
        return self._scan("state_scan", given, rows, vectors, states, heads._asdict(), heads.values)

    def _scan(
        self,
        name: str,
        given: Convolution,
        rows: dict[str, Tensor],
        vectors: Tensor,
        states: States,
        numbers: dict[str, Any],
        values: int,
    ) -> Tensor:
        """A scan over what is given. Of one token, the convolution is part of it, if the device can."""
        if len(given.x) == 1:
            arrays, places = self._rows_of({"mixed": given.x} | rows)
            arrays |= {"vectors": vectors, "taps": given.taps, "inputs": given.states[0], "state": states[0]}
            arrays |= {} if given.bias is None else {"bias": given.bias}
            if self._ops.place.fuses("convolved_scan", arrays):
                numbers |= places | _sizes(given) | {"tokens": 1, "out_from": 0}
                outs = {"next_inputs": given.states[1], "next_state": states[1]}
                outs["out"] = self._ops.empty((1, values))
                self._start(name, arrays, numbers, outs)
                return outs["out"]
        every = {"mixed": self.convolve(given, activated=True)} | rows
        return self._scan_rows(name, every, vectors, states, numbers, values)

    def _scan_rows(
        self,
        name: str,
        rows: dict[str, Tensor],
        vectors: Tensor,
        states: States,
        numbers: dict[str, Any],
        values: int,
    ) -> Tensor:
        """A scan over rows, in several launches if one would be too long for the device: the first one begins
        with the state, the others go on with what it left.
        """
        tokens = len(rows["mixed"])
        out, most = self._ops.empty((tokens, values)), self._most_tokens(name, numbers) or tokens
        numbers |= {"channels": 0, "count": 0}
        for first in range(0, tokens, most):
            arrays, places = self._rows_of(rows, first)
            numbers |= places | {"tokens": min(most, tokens - first), "out_from": first * values}
            arrays |= {"vectors": vectors, "state": None if first else states[0]}
            self._start(name, arrays, numbers, {"next_state": states[1], "out": out})
        return out

    def _rows_of(self, rows: dict[str, Tensor], first: int = 0) -> tuple[dict[str, Any], dict[str, int]]:
        """The memory of rows, those in one memory once, by the name of the first; and where they begin."""
        arrays: dict[str, Any] = {}
        places: dict[str, int] = {}
        for each in (self._rows(name, tensor) for name, tensor in rows.items()):
            places |= each.numbers_from(first)
            if not arrays or each.whole.memory is not next(iter(arrays.values())).memory:
                arrays[each.name] = each.whole
        return arrays, places

    def _together(self, *vectors: Tensor) -> Tensor:
        """Vectors of one size as one array; a copy if they do not lie so in memory."""
        piece = in_one_piece(vectors)
        if piece and piece[1] == [*range(len(vectors))]:
            return piece[0]
        return self._ops.ready(np.concatenate([each.reshape(1, -1) for each in vectors]))

    def _most_tokens(self, name: str, numbers: dict[str, Any]) -> int | None:
        ask = getattr(self._ops.place, "most_tokens", None)
        return ask(name, numbers) if ask else None

    def gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """As `Recurrence.gate`."""
        x = x.reshape(len(x), -1, x.shape[-1])
        return self._gate(x, gate.reshape(x.shape), None, 1.0, by_sigmoid=1)

    def gate_and_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float, norm_first: bool
    ) -> Tensor:
        """As `Recurrence.gate_and_norm`."""
        gate = gate if gate.ndim == 3 else gate.reshape(len(gate), 1, -1)
        return self._gate(x.reshape(len(x), groups, -1), gate, weight, eps, norm_first=int(norm_first))

    def _gate(
        self,
        x: Tensor,
        gate: Tensor,
        weight: Tensor | None,
        eps: float,
        by_sigmoid: int = 0,
        norm_first: int = 0,
    ) -> Tensor:
        """`gated_norm` of x (rows, groups, dim). A part of the gates, (rows, parts, values), is for one group
        or more.
        """
        rows, groups, dim = x.shape
        whole, x_from, _ = _whole(x if x.is_dense else x.copy())
        gates, start, (row_step, part_step, _) = _whole(gate)
        numbers = {
            "rows": rows, "groups": groups, "dim": dim, "x_from": x_from, "gate_from": start,
            "gate_step": row_step, "gate_group": part_step, "gate_each": gate.shape[2] // dim, "eps": eps,
            "weight_step": dim if weight is not None and weight.size > dim else 0, "by_sigmoid": by_sigmoid,
            "norm_first": norm_first,
        }  # fmt: skip
        out = self._ops.empty((rows, groups * dim))
        self._start("gated_norm", {"x": whole, "gate": gates, "weight": weight}, numbers, {"out": out})
        return out

    def _rows(self, name: str, x: Tensor) -> _Rows:
        whole, start, (step, _) = _whole(x)
        return _Rows(name, whole, start, step)

    def _start(
        self, name: str, arrays: dict[str, Any], numbers: dict[str, Any], outs: dict[str, Any]
    ) -> None:
        given = {n: self._ops.ready(each) for n, each in arrays.items() if each is not None}
        self._ops.start(name, given, numbers, outs)


class _Rows(NamedTuple):
    """Rows in a memory, by the name that kernels have for them: where the first begins, and from one to the
    next, in elements.
    """

    name: str
    whole: Tensor
    start: int
    step: int

    @property
    def numbers(self) -> dict[str, int]:
        return self.numbers_from(0)

    def numbers_from(self, first: int) -> dict[str, int]:
        """The numbers of the rows from `first` on."""
        return {f"{self.name}_from": self.start + first * self.step, f"{self.name}_step": self.step}


def _sizes(given: Convolution) -> dict[str, int]:
    channels, count = given.taps.shape
    return {"channels": channels, "count": count}


def _whole(x: Tensor) -> tuple[Tensor, int, tuple[int, ...]]:
    """All memory that a tensor is in, where it begins there, and its strides, in elements. Its last axis is
    contiguous, or a copy's.
    """
    if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
        x = x.copy()
    size = x.itemsize
    whole = Tensor(x.ops, x.memory, x.dtype, (x.memory.nbytes // size,))
    return whole, x.offset // size, tuple(stride // size for stride in x.strides)
