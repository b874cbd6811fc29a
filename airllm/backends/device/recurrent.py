"""Mixers with a recurrent state on a device: the convolution before a state, the scans of states, and the
gate after them. `airllm.engine.layers.recurrent` defines them for NumPy arrays.

A launch takes all tokens of a sequence in a pass, and leaves its new state on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

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


class Recurrence(Protocol):
    """What a device does with recurrent states. All arrays are float32."""

    def convolve(
        self, x: Any, taps: Any, bias: Any, states: States, activated: bool = False, gated: bool = False
    ) -> Any:
        """The causal convolution (tokens, channels) of x with `taps` (channels, count); plus a bias, if
        given; then by silu if `activated`. With `gated`, a row of x has first gates, second gates and inputs,
        `channels` each: what goes in, and what comes out, is multiplied by them.
        """

    def scan_delta(
        self, mixed: Any, rates: Any, steps: Any, decay: Any, bias: Any, states: States, heads: DeltaHeads
    ) -> Any:
        """Answers (tokens, values) of the gated delta rule to queries, keys and values (tokens, channels),
        the first two not normalized. The sigmoids of `rates` are the rates, and softplus(`steps` + `bias`)
        times `decay` the logarithms of decays, (tokens, value_heads) each.
        """

    def scan_states(
        self, mixed: Any, steps: Any, decay: Any, bias: Any, skip: Any, states: States, heads: StateHeads
    ) -> Any:
        """What is read (tokens, values) of a state space by values, input and output vectors (tokens,
        channels), plus values times `skip`. `steps` (tokens, heads) as in `scan_delta`.
        """

    def gate(self, x: Any, gate: Any) -> Any:
        """x (rows, ...) times the sigmoid of `gate`, of its shape: (rows, values)."""

    def gate_and_norm(self, x: Any, gate: Any, weight: Any, groups: int, eps: float, norm_first: bool) -> Any:
        """x times silu(gate), (rows, values) both, by the norm of each of `groups` parts of a row; with
        `norm_first`, x by that norm, times silu(gate). `weight`: of a row, or of each part.
        """


class DeviceRecurrence:
    """`Recurrence` by the kernels of a `Place`."""

    def __init__(self, ops: Any):
        self._ops = ops

    def convolve(
        self,
        x: Tensor,
        taps: Tensor,
        bias: Tensor | None,
        states: States,
        activated: bool = False,
        gated: bool = False,
    ) -> Tensor:
        """As `Recurrence.convolve`."""
        (channels, count), (state, next_state) = taps.shape, states
        rows, out = self._rows("x", x), self._ops.empty((len(x), channels))
        numbers = rows.numbers | {
            "tokens": len(x), "channels": channels, "count": count, "gated": int(gated),
            "activated": int(activated),
        }  # fmt: skip
        arrays = {"x": rows.whole, "taps": taps, "bias": bias, "state": state}
        self._start("convolve", arrays, numbers, {"next_state": next_state, "out": out})
        return out

    def scan_delta(
        self,
        mixed: Tensor,
        rates: Tensor,
        steps: Tensor,
        decay: Tensor,
        bias: Tensor,
        states: States,
        heads: DeltaHeads,
    ) -> Tensor:
        """As `Recurrence.scan_delta`."""
        numbers = heads._asdict() | {"tiled": int(heads.tiled)}
        given = {"mixed": mixed, "rates": rates, "steps": steps}
        return self._scan(
            "delta_scan", given, {"decay": decay, "step_bias": bias}, states, numbers, heads.values
        )

    def scan_states(
        self,
        mixed: Tensor,
        steps: Tensor,
        decay: Tensor,
        bias: Tensor,
        skip: Tensor,
        states: States,
        heads: StateHeads,
    ) -> Tensor:
        """As `Recurrence.scan_states`."""
        given, vectors = {"mixed": mixed, "steps": steps}, {"decay": decay, "step_bias": bias, "skip": skip}
        return self._scan("state_scan", given, vectors, states, heads._asdict(), heads.values)

    def _scan(
        self,
        name: str,
        given: dict[str, Tensor],
        vectors: dict[str, Tensor],
        states: States,
        numbers: dict[str, Any],
        values: int,
    ) -> Tensor:
        """A scan over the rows of what is `given`, in several launches if one would be too long for the
        device: the first one begins with the state, the others go on with what it left.
        """
        tokens = len(given["mixed"])
        out, most = self._ops.empty((tokens, values)), self._most_tokens(name, numbers) or tokens
        every = [self._rows(part, each) for part, each in given.items()]
        for first in range(0, tokens, most):
            numbers |= {"tokens": min(most, tokens - first), "out_from": first * values}
            for rows in every:
                numbers |= rows.numbers_from(first)
            arrays: dict[str, Any] = {rows.name: rows.whole for rows in every} | vectors
            arrays["state"] = None if first else states[0]
            self._start(name, arrays, numbers, {"next_state": states[1], "out": out})
        return out

    def _most_tokens(self, name: str, numbers: dict[str, Any]) -> int | None:
        ask = getattr(self._ops.place, "most_tokens", None)
        return ask(name, numbers) if ask else None

    def gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """As `Recurrence.gate`."""
        x = x.reshape(len(x), -1, x.shape[-1])
        whole, start, (row, group, _) = _whole(gate.reshape(x.shape))
        return self._gate(x, whole, (start, row, group), None, 1.0, by_sigmoid=1)

    def gate_and_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float, norm_first: bool
    ) -> Tensor:
        """As `Recurrence.gate_and_norm`."""
        whole, start, (step, _) = _whole(gate)
        parts = x.reshape(len(x), groups, -1)
        return self._gate(
            parts, whole, (start, step, parts.shape[2]), weight, eps, norm_first=int(norm_first)
        )

    def _gate(
        self,
        x: Tensor,
        gate: Tensor,
        places: tuple[int, int, int],
        weight: Tensor | None,
        eps: float,
        by_sigmoid: int = 0,
        norm_first: int = 0,
    ) -> Tensor:
        """`gated_norm` of x (rows, groups, dim). `places`: the first gate, and the steps from one row, and
        from one group, to the next.
        """
        rows, groups, dim = x.shape
        whole, x_from, _ = _whole(x if x.is_dense else x.copy())
        start, row_step, group_step = places
        numbers = {
            "rows": rows, "groups": groups, "dim": dim, "x_from": x_from, "gate_from": start,
            "gate_step": row_step, "gate_group": group_step, "eps": eps, "by_sigmoid": by_sigmoid,
            "weight_step": dim if weight is not None and weight.size > dim else 0, "norm_first": norm_first,
        }  # fmt: skip
        out = self._ops.empty((rows, groups * dim))
        self._start("gated_norm", {"x": whole, "gate": gate, "weight": weight}, numbers, {"out": out})
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


def _whole(x: Tensor) -> tuple[Tensor, int, tuple[int, ...]]:
    """All memory that a tensor is in, where it begins there, and its strides, in elements. Its last axis is
    contiguous, or a copy's.
    """
    if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
        x = x.copy()
    size = x.itemsize
    whole = Tensor(x.ops, x.memory, x.dtype, (x.memory.nbytes // size,))
    return whole, x.offset // size, tuple(stride // size for stride in x.strides)
