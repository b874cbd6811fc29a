"""Where a model's weights and sequences are: in host memory, or on a device, to which they went once.

On a device, `decoder.decoder_layer` computes on the backend's own arrays. Per token, ids and angles go there,
and logits come back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.adapters.adapted_ops import Pairs
from airllm.engine.devices.placed_adapters import PlacedAdapters, placed_bytes
from airllm.engine.devices.placed_layers import place_layers
from airllm.engine.devices.recorded_steps import RecordedSteps
from airllm.engine.layers.decoder import decoder_layers, normalize
from airllm.engine.layers.layer_inputs import LayerInputs
from airllm.engine.layers.rows import Angles, Rows
from airllm.files.weight_file import Stored
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.device_cache import (
    device_bytes,
    move_cache,
)
from airllm.memory.device_plan import WHOLE, DevicePlan
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer
from airllm.memory.passing import Passing

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Weights:
    """A model's layers and ends, as arrays that some ops take; what its layers get besides, if they do."""

    layers: Sequence[Layer]
    embedding: Stored
    output_norm: np.ndarray
    output: Stored
    inputs: LayerInputs | None = None


class OnDevice:
    """A model on the device of its backend, by a `plan`: all of it, or its last layers, of which some may be
    streamed. `on_device` is a `DeviceOps`, `ops` the same or `ExactOps` of it. `host`: the memory that
    weights pass through, if it has a budget. `adapters`: see `adapt`. Raises DeviceFault.
    """

    def __init__(
        self,
        ops: Any,
        on_device: Any,
        weights: Weights,
        plan: DevicePlan | None = None,
        host: Passing | None = None,
        adapters: Pairs = MappingProxyType({}),
    ):
        self.ops, self.device, self.config = ops, on_device, weights.layers[0].config
        self.plan = plan or DevicePlan(WHOLE, len(weights.layers))
        self.device.arena.limit = self.plan.limit
        self._caches: WeakSet[Cache] = WeakSet()
        self._recorded: WeakKeyDictionary[Cache, RecordedSteps] = WeakKeyDictionary()  # of one sequence
        self._parts: dict[type, Any] = {}
        moved: dict[int, Any] = {}

        def move(stored: Any) -> Any:
            if id(stored) not in moved:
                moved[id(stored)] = on_device.to_device(stored)
            return moved[id(stored)]

        with self.faults():
            self._norm, self._output = move(weights.output_norm), move(weights.output)
            tied = weights.embedding is weights.output
            there = not self.plan.first and (tied or self.plan.embeds)
            self._embedding = move(weights.embedding) if there else None
            self._inputs = weights.inputs.moved(move) if weights.inputs and there else None
            if host:
                on_device.wait()
                host.leave_ends()
            self.layers = place_layers(weights.layers, self.plan, move, on_device, host)
        self._for_adapters = placed_bytes(adapters, self.config.experts)  # bytes of the plan
        self.adapt(adapters)

    def has_room_for(self, adapters: Pairs) -> bool:
        """Whether the plan has room for these adapters."""
        more = placed_bytes(adapters, self.config.experts) - self._for_adapters
        return self.plan.limit is None or self.plan.nbytes + more <= self.plan.limit

    def adapt(self, adapters: Pairs) -> None:
        """Use these adapters, and no others. Raises DeviceFault."""
        self._recorded.clear()
        with self.faults():
            self._adapters = PlacedAdapters({}, self.device)  # frees the others first
            first = [f"layers.{i}." for i in range(self.plan.first)]  # which are in host memory
            there = {name: pair for name, pair in adapters.items() if not name.startswith(tuple(first))}
            self._adapters = PlacedAdapters(there, self.device, self.config.experts)

    def caches(self) -> list[Cache]:
        """The sequences whose keys and values, or states, are there."""
        return [cache for cache in self._caches if cache.is_on_device]

    @property
    def embeds(self) -> bool:
        """Whether `run_layers` begins with ids, not with hidden states."""
        return self._embedding is not None

    def part(self, make: Callable[[], T], kind: type[T]) -> T:
        """What is kept there besides, one of each kind: made once, freed with the weights."""
        if kind not in self._parts:
            self._parts[kind] = make()
        return self._parts[kind]

    def close(self) -> None:
        """Free the memory of the weights."""
        self.layers = []
        self._parts.clear()
        self._recorded.clear()
        self._adapters = PlacedAdapters({}, self.device)
        self._norm = self._output = self._embedding = self._inputs = None
        if forget := self.device.extension("forget"):
            forget()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Errors of the driver become a DeviceFault."""
        try:
            yield
        except Exception as error:
            if (fault := self.device.fault(error)) is None or fault is error:
                raise
            raise fault from error

    def run_layers(
        self,
        ids: list[int],
        angles: Sequence[Angles],
        rows: Sequence[Rows],
        before: np.ndarray | None,
        inputs: np.ndarray | None = None,
    ) -> Generator[Any]:
        """Yield the hidden states (tokens, width) after each layer. The rows' caches go to the device.
        `before`: the states before the first layer there, from host memory, unless it `embeds`. `inputs`
        (all layers, tokens, layer_input), from host memory: those of the layers, if they have any; or
        what `LayerInputs.weigh` makes of rows of the ids, if it embeds them.
        """
        with self.faults():
            self._move_caches(rows)
            moved = [self._move_angles(each) for each in angles]
            own = None if inputs is None else self.device.to_device(inputs)
            x = self.embed(ids) if before is None else self.device.to_device(before)
            if self._inputs:
                own = self._inputs.of(self.ops, own, x)
        if not self.layers:
            yield x
        for layer in self.layers:
            with self.faults():
                entered = layer.enter()
                ops = self._adapters.ops_of(self.ops, entered)
                x = decoder_layers(ops, x, [entered], moved, rows, own)
                layer.leave()
            yield x
        if start := self.device.extension("start"):
            start(x)

    def step(
        self, token: int, angles: Sequence[Angles], rows: Sequence[Rows], inputs: np.ndarray | None = None
    ) -> np.ndarray:
        """Logits (1, vocabulary) after the next token of one sequence, whose cache does not grow: what
        `run_layers` and `logits` make of it, by launches that are recorded where the device can.
        """

        def compute() -> np.ndarray:
            for state in self.run_layers([token], angles, rows, None, inputs):
                last = state
            return self.logits(last)

        if not self._records:
            return compute()
        cache = rows[0].cache
        with self.faults():
            self._move_caches(rows)
            given = [each for of in angles for each in (of.cos, of.sin)]
            given += [*([] if inputs is None else [inputs]), np.array([token], np.int64)]
            return self._recorded_of(cache).run(cache, given, compute)

    @property
    def _records(self) -> bool:
        """Whether the launches of a token can be recorded: all layers are there, and the place can."""
        able = hasattr(getattr(self.device, "place", None), "record")
        return able and self.embeds and not self.plan.streamed

    def _recorded_of(self, cache: Cache) -> RecordedSteps:
        if cache not in self._recorded:
            self._recorded.clear()  # of one sequence at a time
            self._recorded[cache] = RecordedSteps(self.device)
        return self._recorded[cache]

    def each_layer(self) -> Iterator[Layer]:
        """The layers with weights on the device, each for the launches until the next one is asked for."""
        for layer in self.layers:
            yield layer.enter()
            layer.leave()

    def embed(self, ids: Sequence[int] | np.ndarray) -> Any:
        """The embeddings (tokens, width), float32, with their scale."""
        x = self.ops.embedding(np.array(ids, np.int64), self._embedding)
        x = x.astype(np.float32, copy=False)
        if self.config.embedding_scale != 1:
            x *= np.float32(self.config.embedding_scale)
        return x

    def logits(self, hidden: Any) -> np.ndarray:
        """Logits (rows, vocabulary) of hidden states, in host memory."""
        with self.faults():
            normed = self.normalized(hidden)
            ops = self._adapters.ops_of_output(self.ops, self._output)
            return ops.linear(normed, self._output).numpy()

    def normalized(self, hidden: Any) -> Any:
        """Hidden states by the last norm, if there is one."""
        return normalize(self.ops, hidden, self._norm, self.config) if self.config.final_norm else hidden

    def _move_angles(self, angles: Angles) -> Angles:
        cos, sin = map(self.device.to_device, (angles.cos, angles.sin))
        return Angles(cos, sin, angles.interleaved)

    def _move_caches(self, rows: Sequence[Rows]) -> None:
        """Bring keys and values of the layers there to the device. Raises MemoryBudgetError if the sequences
        together take more than the plan has for them.
        """
        first = self.plan.first
        grows = {part.cache: part.stop - part.start for part in rows}
        self._caches |= set(grows)
        if self.plan.limit is not None and len(self._caches) > 1:
            held = sum(device_bytes(cache, first, grows.get(cache, 0)) for cache in self._caches)
            if held > (room := max(self.plan.caches, self._spare)):
                found = f"the sequences would take {held} bytes of the device"
                raise MemoryBudgetError(f"{found}, expected at most {room}, which device_memory leaves them")
        for cache, tokens in grows.items():
            move_cache(cache, self.device, tokens, first)

    @property
    def _spare(self) -> int:
        """Bytes for keys and values, with those that the plan does not need for anything else."""
        return (self.plan.limit or 0) - self.plan.nbytes + self.plan.caches


def why_not_on_device(ops: KernelBackend, whole: bool = True, shared: bool = False) -> str:
    """Why a model's arrays do not stay on the device of these ops; "" if they do. `whole`: all weights are in
    memory at once, or pass through it. `shared`: processes share the model.
    """
    if ops.extension("device_ops") is None:
        return f"{ops.name()} computes in host memory"
    if shared:
        return "processes that share a model add their results in host memory"
    return "" if whole else "weights pass through host memory within a budget"
