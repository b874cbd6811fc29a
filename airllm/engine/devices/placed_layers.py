"""A model's layers on a device: those that stay there, and those whose matrices are streamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from airllm.backends.device.staging import Group, Joined, Staging, group_bytes
from airllm.engine.layers.recurrent_on_device import constants
from airllm.files.weight_file import Stored
from airllm.formats import Quantized
from airllm.memory.device_plan import DevicePlan, is_matrix
from airllm.memory.layers import Layer
from airllm.memory.passing import Passing

# Matrices of one input, which a device multiplies together: as many of them as a layer has.
_STACKS = (
    ("attention.q", "attention.k", "attention.v", "mamba.in"),
    ("attention.q_a", "attention.q", "attention.kv_a"),
    ("feed_forward.gate", "feed_forward.up"),
    ("shared_expert.gate", "shared_expert.up"),
    ("delta.qkv", "delta.qkvz", "delta.gate", "delta.rate", "delta.step"),
)
# Of these, the bias is no part of the product.
_BIASED_LATER = ("delta.step",)
# Vectors of one size that lie one after the other on a device: those of norms of one input, which it computes
# together, the router's first; and those of the heads of a recurrent mixer.
_VECTORS = (
    ("experts.router_norm", "experts.norm", "feed_forward.norm"),
    ("delta.decay", "delta.step_bias"),
    ("mamba.decay", "mamba.step_bias", "mamba.skip"),
)


class PlacedLayer(Protocol):
    """A layer as a pass meets it."""

    def enter(self) -> Layer:
        """The layer, with weights on the device, for launches from now until `leave`."""

    def leave(self) -> None:
        """All launches of the layer were started."""


class _Resident:
    """A layer that stays on the device."""

    def __init__(self, layer: Layer):
        self._layer = layer

    def enter(self) -> Layer:
        return self._layer

    def leave(self) -> None:
        """Nothing: it stays."""


class _Streamed:
    """A layer whose vectors stay on the device, and whose matrices are number `place` of a staging."""

    def __init__(
        self, vectors: Layer, layer: Layer, staging: Staging, place: int, put_beside: Callable | None
    ):
        self._layer, self._staging, self._place = vectors, staging, place
        self._names = [names for names, _ in matrix_groups(layer)]
        self._put_beside = put_beside or (lambda *groups: None)
        self._beside = [each for each in _stacks_of(layer) if len(each) > 1]
        self._known: dict[int, Layer] = {}  # of each of the two staging places

    def enter(self) -> Layer:
        slot, staged = self._staging.enter(self._place)
        if slot not in self._known:
            found = dict(self._layer.weights)
            for names, matrices in zip(self._names, staged, strict=True):
                found |= zip(names, matrices, strict=True)
            for groups in self._beside:
                self._put_beside(*([found[name] for name in names] for names in groups))
            self._known[slot] = dataclasses.replace(self._layer, weights=found)
        return self._known[slot]

    def leave(self) -> None:
        self._staging.leave(self._place)


class _Numbered:
    """The host memory of some layers, which are numbered from 0."""

    def __init__(self, host: Passing, layers: Sequence[int]):
        self._host, self._layers = host, layers

    def expect(self, layer: int) -> None:
        self._host.expect(self._layers[layer])

    def leave(self, layer: int) -> None:
        self._host.leave(self._layers[layer])


def place_layers(
    layers: Sequence[Layer],
    plan: DevicePlan,
    move: Callable[[Any], Any],
    on_device: Any,
    host: Passing | None = None,
) -> list[PlacedLayer]:
    """The layers of a plan, from its first on, on the device of a `DeviceOps`. `move` puts a weight there;
    they leave `host` memory if it has a budget.
    """
    found: dict[int, PlacedLayer] = {}
    if plan.streamed:
        streamed = [staged_groups(layers[i]) for i in plan.streamed]
        staging = Staging(on_device, streamed, _Numbered(host, plan.streamed) if host else None)
        for place, i in enumerate(plan.streamed):
            vectors = _move_layer(layers[i], move, on_device, matrices=False)
            found[i] = _Streamed(vectors, layers[i], staging, place, getattr(on_device, "put_beside", None))
    for i in range(plan.first, len(layers)):
        if i not in found:
            found[i] = _Resident(_move_layer(layers[i], move, on_device))
        if host:
            on_device.wait()
            host.leave(i)
    return [found[i] for i in range(plan.first, len(layers))]


def staging_bytes(layers: Sequence[Layer]) -> int:
    """Bytes of two staging places through which these layers pass."""
    return 2 * sum(group_bytes([staged_groups(layer) for layer in layers]))


def staged_groups(layer: Layer) -> list[Group]:
    """A layer's matrices: those of one kind that can be multiplied together are a group."""
    return [matrices for _, matrices in matrix_groups(layer)]


def matrix_groups(layer: Layer) -> list[tuple[list[str], list[Any]]]:
    """The names and the matrices of each group of a layer. All experts' matrices of a kind and format are
    one.
    """
    together = [names for groups in _stacks_of(layer) for names in groups if len(names) > 1]
    single = [(name,) for name, each in layer.weights.items() if is_matrix(each)]
    alone = [names for names in single if not any(names[0] in stack for stack in together)]
    groups: list[Sequence[str]] = [*together, *alone]
    dense = [(list(names), [layer[name] for name in names]) for names in groups]
    return dense + [([name], [joined]) for name, joined in join_experts(layer).items()]


def _stacks_of(layer: Layer) -> list[list[tuple[str, ...]]]:
    """The matrices of a layer that are multiplied together, those of one format in a group. All have
    biases, or none has.
    """
    found = []
    for names in _STACKS:
        groups: dict[str, tuple[str, ...]] = {}
        for name in (name for name in names if layer.get(name) is not None):
            kind = _kind(layer[name])
            groups[kind] = (*groups.get(kind, ()), name)
        there = [name for group in groups.values() for name in group]
        biases = {_kind(layer.get(f"{name}_bias")) for name in there if name not in _BIASED_LATER}
        if len(there) > 1 and len(biases) == 1:
            found.append(list(groups.values()))
    return found


def _move_layer(layer: Layer, move: Any, on_device: Any, matrices: bool = True) -> Layer:
    """A layer on the device, with matrices that can be multiplied together side by side, and their biases in
    one piece of memory; its vectors only without `matrices`.
    """
    every = dict(layer.weights) | constants(layer)
    own = {name: each for name, each in every.items() if matrices or not is_matrix(each)}
    moved: dict[str, Any] = {}
    for groups in _stacks_of(layer):
        able = len(groups) == 1 or hasattr(on_device, "put_beside")
        stacks = [sum(groups, ())] if able else [names for names in groups if len(names) > 1]
        for names in stacks:
            for end in ("", "_bias"):
                parts = [f"{name}{end}" for name in names if f"{name}{end}" in own]
                if parts:
                    moved |= zip(parts, on_device.stack([own[name] for name in parts]), strict=True)
    for names in _VECTORS:
        if all(name in own for name in names):
            moved |= zip(names, on_device.stack([own[name] for name in names]), strict=True)
    rest = {name: move(each) for name, each in own.items() if name not in moved}
    joined = join_experts(layer) if matrices else {}
    experts = {name: on_device.to_device(each.join()) for name, each in joined.items()}
    places = {name: on_device.to_device(each) for name, each in places_of_experts(layer).items()}
    return dataclasses.replace(layer, weights=rest | moved | experts | places)


def join_experts(layer: Layer) -> dict[str, Joined]:
    """The matrices of all experts of a layer by their names on a device, one array for each kind, and one for
    gate and up if each expert has both in one format, which their biases may be where they are not. Of a kind
    in several formats, each has an array of its own.
    """
    found = {}
    for name, parts, groups in _kinds_of_experts(layer):
        for number, group in enumerate(groups.values()):
            whole = name if len(groups) == 1 else f"{name}.{number}"
            found[whole] = _join([expert for _, expert in group], parts)
    return found


def places_of_experts(layer: Layer) -> dict[str, np.ndarray]:
    """Where each expert is in the arrays of kinds that have several formats, by names on a device: (experts,)
    int32, -1 for an expert of another array.
    """
    found = {}
    for name, _, groups in _kinds_of_experts(layer):
        for number, group in enumerate(groups.values() if len(groups) > 1 else ()):
            places = np.full(layer.config.experts, -1, np.int32)
            places[[expert for expert, _ in group]] = np.arange(len(group))
            found[f"{name}.{number}.places"] = places
    return found


# Numbers and weights of the experts of one format, by format.
_Groups: TypeAlias = dict[str, list[tuple[int, Any]]]


def _kinds_of_experts(layer: Layer) -> list[tuple[str, list[str], _Groups]]:
    """The name of each array of experts on a device, the names of what it has of an expert, and the experts
    by format. If they have several, each is an array.
    """
    if not layer.experts:
        return []
    experts = [layer.experts.look_up(number) for number in range(layer.config.experts)]
    found = []
    for end in ("", "_bias"):
        kinds = [each for each in ("gate", "up", "down") if f"{each}{end}" in experts[0]]
        alike = all(_kind(each.get(f"gate{end}")) == _kind(each.get(f"up{end}")) for each in experts)
        together = {"gate_up": ["gate", "up"]} | {each: [each] for each in kinds if each == "down"}
        own = together if alike and "gate" in kinds else {each: [each] for each in kinds}
        for name, parts in own.items() if kinds else ():
            names, groups = [f"{part}{end}" for part in parts], _Groups()
            for number, expert in enumerate(experts):
                groups.setdefault(_kind(expert[names[0]]), []).append((number, expert))
            found.append((f"experts.{name}{end}", names, groups))
    return found


def _join(experts: Sequence[dict[str, Stored]], names: Sequence[str]) -> Joined:
    """These weights of each expert, one expert after the other."""
    parts = [expert[name] for expert in experts for name in names]
    first = parts[0].data if isinstance(parts[0], Quantized) else parts[0]
    return Joined(parts, (len(experts), len(names) * len(first), *first.shape[1:]))


def _kind(stored: Stored | None) -> str:
    if stored is None:
        return ""
    return stored.format if isinstance(stored, Quantized) else str(stored.dtype)
