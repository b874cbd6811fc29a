"""Mixers with a recurrent state on MLX's device: `airllm.backends.device.recurrent.Recurrence`.

Scans go over chunks of tokens, by products of matrices: `airllm/engine/layers/delta_rule.py` and
`state_space.py` derive them. The last chunk is filled with tokens that change nothing.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from airllm.backends.device.recurrent import Convolution, DeltaHeads, StateHeads
from tensor_ops_mlx import operations
from tensor_ops_mlx.device_array import Array

_CHUNK = 8
_TINY = 1e-6  # added to squared lengths


class Recurrence:
    """The convolution before a state, the scans of states, and the gate after them."""

    def __init__(self, ops: Any):
        self._ops = ops

    def convolve(self, given: Convolution, activated: bool = False, gated: bool = False) -> Array:
        """The causal convolution (tokens, channels) of x with `taps` (channels, count)."""
        (before, after), (_, count), x = given.states, given.taps.shape, given.x.value
        if given.joined:
            x = _channels_of(x, given.joined)
        first, second, x = mx.split(x, 3, axis=1) if gated else (None, None, x)
        inputs = mx.concatenate([before.value, x if first is None else first * x])
        tokens, by_tap = len(x), given.taps.value
        after.write(inputs[tokens:])
        found = sum(inputs[tap : tap + tokens] * by_tap[:, tap] for tap in range(count))
        found = found if given.bias is None else found + given.bias.value
        found = operations.silu(found) if activated else found
        return Array(self._ops, found if second is None else found * second)

    def scan_delta(
        self,
        given: Convolution,
        rates: Array,
        steps: Array,
        decay: Array,
        bias: Array,
        states: Any,
        heads: DeltaHeads,
    ) -> Array:
        """Answers (tokens, values) of the gated delta rule to queries, keys and values."""
        mixed = self.convolve(given, activated=True)
        log_decay, rate = decay.value * _softplus(steps.value + bias.value), mx.sigmoid(rates.value)
        q, k, v = _heads_of(mixed.value, heads)
        arrays = q, k, v, log_decay[..., None], rate[..., None]
        found, after = _scan_delta(states[0].value, *map(_in_chunks, arrays))
        states[1].write(after)
        return Array(self._ops, _by_token(found, len(v)))

    def scan_states(
        self,
        given: Convolution,
        steps: Array,
        decay: Array,
        bias: Array,
        skip: Array,
        states: Any,
        heads: StateHeads,
    ) -> Array:
        """What is read (tokens, values) of a state space, plus values times `skip`."""
        x = self.convolve(given, activated=True).value
        step = _softplus(steps.value + bias.value)
        wide = heads.groups * heads.state_dim
        v = x[:, : heads.values].reshape(len(x), heads.heads, heads.head_dim)
        vectors = (x[:, at : at + wide] for at in (heads.values, heads.values + wide))
        each = heads.heads // heads.groups
        writes, reads = (mx.repeat(one.reshape(len(x), heads.groups, -1), each, axis=1) for one in vectors)
        arrays = writes, reads, v * step[..., None], (decay.value * step)[..., None]
        found, after = _scan_states(states[0].value, *map(_in_chunks, arrays))
        states[1].write(after)
        skipped = (skip.value[:, None] * v).reshape(len(x), -1)
        return Array(self._ops, _by_token(found, len(x)) + skipped)

    def gate(self, x: Array, gate: Array) -> Array:
        """x (rows, ...) times the sigmoid of `gate`: (rows, values)."""
        return Array(self._ops, (x.value * mx.sigmoid(gate.value)).reshape(len(x), -1))

    def gate_and_norm(
        self, x: Array, gate: Array, weight: Any, groups: int, eps: float, norm_first: bool
    ) -> Array:
        """x times silu(gate), by the norm of each of `groups` parts of a row."""
        found, opened = x.value, operations.silu(gate.value.reshape(x.value.shape))
        if weight is None:
            return Array(self._ops, found * opened)
        parts = (found if norm_first else found * opened).reshape(len(found), groups, -1)
        normed = mx.fast.rms_norm(parts, None, eps) * weight.value.reshape(-1, parts.shape[-1])
        normed = normed.reshape(found.shape)
        return Array(self._ops, normed * opened if norm_first else normed)


def _softplus(x: mx.array) -> mx.array:
    return mx.logaddexp(x, mx.array(0.0))


def _channels_of(x: mx.array, of: DeltaHeads) -> mx.array:
    """Queries, keys and values (tokens, channels) of rows that have those, and gates, for each key head."""
    stops = of.key_dim, 2 * of.key_dim, 2 * of.key_dim + of.of_key_head
    parts = mx.split(x.reshape(len(x), of.key_heads, -1), stops, axis=2)[:3]
    return mx.concatenate([each.reshape(len(x), -1) for each in parts], axis=1)


def _heads_of(mixed: mx.array, of: DeltaHeads) -> tuple[mx.array, mx.array, mx.array]:
    """Queries and keys, of length 1 and queries then scaled, and values (tokens, value_heads, dim)."""
    keys, each = of.key_heads * of.key_dim, of.value_heads // of.key_heads
    both = mixed[:, : 2 * keys].reshape(len(mixed), 2, of.key_heads, of.key_dim)
    both = both * mx.rsqrt((both * both).sum(axis=-1, keepdims=True) + _TINY)
    both = mx.tile(both, (1, 1, each, 1)) if of.tiled else mx.repeat(both, each, axis=2)
    values = mixed[:, 2 * keys :].reshape(len(mixed), of.value_heads, of.value_dim)
    return both[:, 0] * of.key_dim**-0.5, both[:, 1], values


def _in_chunks(x: mx.array) -> mx.array:
    """x (tokens, heads, values) as (chunks, heads, tokens of a chunk, values), filled with zeros."""
    tokens, heads, values = x.shape
    size = 1 if tokens == 1 else _CHUNK
    filled = mx.pad(x, [(0, -tokens % size), (0, 0), (0, 0)])
    return filled.reshape(-1, size, heads, values).swapaxes(1, 2)


def _by_token(chunks: list[mx.array], tokens: int) -> mx.array:
    """Chunks (heads, tokens of a chunk, values) as the first `tokens` rows (tokens, values of all heads)."""
    found = mx.concatenate([each.swapaxes(0, 1) for each in chunks])[:tokens]
    return found.reshape(tokens, -1)


def _between(fade: mx.array) -> mx.array:
    """How much is left at token i of a chunk of what token j <= i brought."""
    return mx.tril(mx.exp(mx.minimum(fade - fade.swapaxes(-1, -2), 0.0)))


def _scan_delta(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, rate: mx.array
) -> tuple[list[mx.array], mx.array]:
    """The answers of each chunk, and the state after them."""
    fade = mx.cumsum(log_decay, axis=-2)
    between, keys, last = _between(fade), k.swapaxes(-1, -2), fade[..., -1:, :]
    solved = _inverse(mx.tril((rate * k) @ keys * between, -1))
    values, reads = solved @ (rate * v), solved @ (rate * k * mx.exp(fade))
    attends, asks = q @ keys * between, q * mx.exp(fade)
    teaches, left = (k * mx.exp(last - fade)).swapaxes(-1, -2), mx.exp(last)
    found = []
    for i in range(len(q)):
        learned = values[i] - reads[i] @ state
        found.append(asks[i] @ state + attends[i] @ learned)
        state = state * left[i] + teaches[i] @ learned
    return found, state


def _scan_states(
    state: mx.array, writes: mx.array, reads: mx.array, v: mx.array, log_decay: mx.array
) -> tuple[list[mx.array], mx.array]:
    """What is read in each chunk, and the state after them."""
    fade = mx.cumsum(log_decay, axis=-2)
    last = fade[..., -1:, :]
    within = reads @ writes.swapaxes(-1, -2) * _between(fade) @ v
    asks, left = reads * mx.exp(fade), mx.exp(last)
    teaches = (writes * mx.exp(last - fade)).swapaxes(-1, -2)
    found = []
    for i in range(len(v)):
        found.append(within[i] + asks[i] @ state)
        state = state * left[i] + teaches[i] @ v[i]
    return found, state


def _inverse(below: mx.array) -> mx.array:
    """The inverse of I + `below` (..., n, n), whose upper triangle and diagonal are 0."""
    power, found, size = -below, mx.eye(below.shape[-1]) - below, 2
    while size < below.shape[-1]:
        power = power @ power
        found = found + found @ power
        size *= 2
    return found
