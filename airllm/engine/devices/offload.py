"""Puts a model on a device that may have less memory than the model: plans it, and measures what is faster.

`airllm/memory/device_plan.py` says what fits. If layers can be split off to the processor or streamed, a
layer of each kind is timed, and the faster form is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends import config_schema, registry
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.backends.device.cost import median_seconds
from airllm.backends.device.faults import MEMORY, DeviceFault
from airllm.backends.device.staging import why_not_streamed
from airllm.engine.adapters.adapted_ops import Pairs
from airllm.engine.devices.placed_adapters import placed_bytes
from airllm.engine.devices.placed_encoder import table_bytes
from airllm.engine.devices.placed_layers import staged_groups, staging_bytes
from airllm.engine.devices.placement import OnDevice, Weights
from airllm.engine.exact_ops import ExactOps
from airllm.engine.layers.decoder import decoder_layers
from airllm.engine.layers.native_decode import FusedLayers
from airllm.engine.layers.rows import Angles, Rows
from airllm.memory.budget import CHUNK, MemoryBudgetError
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.device_plan import (
    SPLIT,
    STREAM,
    DeviceOptions,
    DevicePlan,
    DeviceSizes,
    measure_sizes,
    plan_device,
)
from airllm.memory.estimate import activation_bytes
from airllm.memory.kernel_copies import KernelCopies
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer
from airllm.memory.passing import Passing

_TOGETHER = 8  # layers that a device computes before the host waits for it
_COPIED = 16 << 20  # bytes of an upload that is timed, at least if there are so many


def host_ops(ops: Any) -> Any:
    """The ops of the processor's backend, exact if `ops` are."""
    for name in config_schema.on_processor():
        if not registry.open_backend(name).why_not:
            found = KernelBackend(name)
            return ExactOps(found) if isinstance(ops, ExactOps) else found
    raise RuntimeError("no backend of the processor runs here")


def interleave_first(tensors: NamedTensors, ops: Any, layers: list[Layer], count: int) -> list[Layer]:
    """The layers, the first ones of which are in the order in which the processor's kernels read them."""
    interleave, formats = ops.extension("interleave"), ops.extension("interleaved_formats")
    if not interleave:
        return layers
    copies = KernelCopies(tensors, interleave, formats)
    return [*copies.replace_layers(layers[:count]), *layers[count:]]


class Offload:
    """A model that goes to a device: its weights, the ops there and on the host, what the user said of it.

    `context`: the most tokens of a sequence, `cache_dtype`: of its keys and values. `host`: the memory that
    weights pass through, if it has a budget. `adapters`: those in use, by `join_adapters`.
    """

    def __init__(
        self,
        ops: Any,
        on_device: Any,
        weights: Weights,
        context: int,
        cache_dtype: str,
        options: DeviceOptions,
        host: Passing | None = None,
        adapters: Pairs = MappingProxyType({}),
    ):
        self.ops, self._device, self.weights = ops, on_device, weights
        self._config: ModelConfig = weights.layers[0].config
        self._context, self._dtype, self._options = context, cache_dtype, options
        self._host, self._adapters = host, adapters

    @property
    def _exact(self) -> bool:
        return isinstance(self.ops, ExactOps)

    @property
    def _ops_there(self) -> Any:
        return ExactOps(self._device) if self._exact else self._device

    def open(self) -> OnDevice:
        """Put the model there by the best plan. Raises MemoryBudgetError, DeviceFault, or NotImplementedError
        that names what the device cannot do.
        """
        try:
            plans = self.plans()
        except MemoryBudgetError as error:
            if self._options.given:
                raise
            raise DeviceFault(MEMORY, self._device.place.label, str(error)) from error
        plan = plans[0] if len(plans) == 1 else self._faster(plans)
        if self._host and plan.streamed and self._config.experts_by_columns:
            raise NotImplementedError(
                "experts by columns are streamed as copies, for which a budget has no room"
            )
        return OnDevice(self._ops_there, self._device, self.weights, plan, self._host, self._adapters)

    def plans(self) -> list[DevicePlan]:
        """The plans that fit into the device. Raises MemoryBudgetError if none does. Within a budget of host
        memory, no layer is computed there, and none of an encoder. ValueError if the user wants that.
        """
        options = self._options
        if self._config.encoding and options.offload == SPLIT:
            raise ValueError(
                "offload has value 'split', expected 'stream': layers of an encoder are not split"
            )
        if self._host or self._config.encoding:
            options = dataclasses.replace(options, offload=STREAM)
        return plan_device(self._sizes(), options, self._device.free_memory)

    def _sizes(self) -> DeviceSizes:
        layers, w = self.weights.layers, self.weights
        layout = CacheLayout(self._config, self._context, self._dtype, windowed=True)
        sizes = measure_sizes(
            layers,
            w.output.nbytes + w.output_norm.nbytes + self._result_bytes(),
            0 if w.embedding is w.output else w.embedding.nbytes,
            layout,
            lambda some: staging_bytes([layers[i] for i in some]),
            why_not_streamed(self._device),
        )
        return dataclasses.replace(sizes, caches=[0] * len(layers)) if self._config.encoding else sizes

    def _result_bytes(self) -> int:
        """Bytes of the results of a pass, and of what is there besides weights. A text of an encoder is one
        pass.
        """
        c = self._config
        exact = [max(np.prod(each.shape) for each in _matrices(self.weights))] if self._exact else []
        tokens = max(CHUNK, self._context) if c.encoding else min(CHUNK, self._context)
        tables = table_bytes(c, self._context) if c.encoding else 0
        adapters = placed_bytes(self._adapters, c.experts)
        inputs = self.weights.inputs.nbytes if self.weights.inputs else 0
        return activation_bytes(c, tokens, unpacked=exact, workspaces=0) + tables + adapters + inputs

    # ---- which form is faster ----

    def _faster(self, plans: Sequence[DevicePlan]) -> DevicePlan:
        """The plan by which a token takes less time, as a layer of each kind tells."""
        there, here = self._seconds_there(), self._seconds_here()
        rate = self._bytes_per_second()
        seconds = {plan.form: self._predict(plan, there, here, rate) for plan in plans}
        best = min(plans, key=lambda plan: seconds[plan.form])
        told = ", ".join(f"{form} {1e3 * seconds[form]:.3g} ms" for form in (SPLIT, STREAM))
        return dataclasses.replace(best, why=f"a token takes {told}, as measured on a layer")

    def _predict(self, plan: DevicePlan, there: float, here: float, rate: float) -> float:
        """Seconds of a token in the layers."""
        if plan.form == SPLIT:
            return plan.first * here + plan.stays * there
        passed = [self.weights.layers[i] for i in plan.streamed]
        nbytes = sum(each.nbytes for layer in passed for group in staged_groups(layer) for each in group)
        return max(nbytes / rate, plan.layers * there)

    def _one_layer(self) -> list[Layer]:
        """The last layer that does not read the keys and values of another."""
        sources = self._config.kv_layers
        own = [each for each in self.weights.layers if not sources or sources[each.index] == each.index]
        return own[-1:]

    def _seconds_there(self) -> float:
        """Seconds of a layer of a token on the device."""
        norm = self.weights.output_norm  # in place of the ends, which are not timed
        own = Weights(self._one_layer(), norm, norm, norm)
        found = OnDevice(self._ops_there, self._device, own)
        cache = Cache(self._config, 1, self._dtype)
        x, angles, rows = self._token(cache)

        def run() -> None:
            for _ in range(_TOGETHER):
                for y in found.run_layers([0], angles, rows, x):
                    last = y
            last.numpy()

        return median_seconds(run) / _TOGETHER

    def _seconds_here(self) -> float:
        """Seconds of a layer of a token on the processor."""
        ops, layers = host_ops(self.ops), self._one_layer()
        cache = Cache(self._config, 1, self._dtype)
        x, angles, rows = self._token(cache)
        fused = FusedLayers(ops, layers)
        if fused.supports(rows):
            return median_seconds(lambda: fused.run(x.copy(), angles, rows))
        return median_seconds(lambda: decoder_layers(ops, x, layers, angles, rows))

    def _token(self, cache: Cache) -> tuple[np.ndarray, list[Angles], list[Rows]]:
        """A hidden state, angles and rows of one token."""
        c = self._config
        x = np.full((1, c.width), 0.1, np.float32)
        ropes = [rope for rope in (c.rope, c.local_rope) if rope]
        angles = []
        for rope in ropes:
            ones = np.ones((1, 1, rope.dim // 2), np.float32)
            angles.append(Angles(ones, ones - 1, rope.interleaved))
        return x, angles, [Rows(0, 1, cache)]

    def _bytes_per_second(self) -> float:
        """The rate of uploads to the device, of matrices as they are in the file."""
        some, total = list[np.ndarray](), 0
        for stored in _matrices(self.weights):
            data = stored if isinstance(stored, np.ndarray) else stored.data
            some.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            total += some[-1].nbytes
            if total > _COPIED:
                break
        moved = self._device.empty((max(each.nbytes for each in some),), np.uint8)

        def copy() -> None:
            for each in some:
                self._device.place.upload(moved.memory.buffer, each)
            moved[:4].numpy()

        return total / median_seconds(copy)


def _matrices(weights: Weights) -> list[Any]:
    inner = (each for layer in weights.layers for each in layer.weights.values())
    return [*inner, weights.output]
