"""An opened model: its weights, the backend that it runs on, and where its weights are for that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any
from weakref import WeakKeyDictionary

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends.device.faults import DeviceFault
from airllm.engine.adapters.adapted_ops import AdaptedOps, Attached, attach, join_adapters
from airllm.engine.adapters.adapter import Adapter, Pair
from airllm.engine.devices.fallback import Fallbacks
from airllm.engine.devices.offload import Offload, host_ops, interleave_first
from airllm.engine.devices.placement import OnDevice, Weights, why_not_on_device
from airllm.engine.exact_ops import ExactOps
from airllm.engine.layers.attention import unpacks_cache
from airllm.engine.layers.layer_inputs import LayerInputs
from airllm.engine.layers.native_decode import BoundStep, FusedLayers, FusedStep
from airllm.engine.layers.rope_tables import Rotations
from airllm.engine.parallel.tensor_parallel import Processes, Shard
from airllm.engine.row_kernels import RowKernels, RowOps, choose_kernels
from airllm.files.open_weights import open_weights
from airllm.memory.available import memory_limit
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.cache_layout import layer_values
from airllm.memory.device_plan import DeviceOptions
from airllm.memory.estimate import MemoryEstimate, estimate, weight_bytes
from airllm.memory.fingerprint import fingerprint
from airllm.memory.kernel_copies import KernelCopies
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import open_output_norm, open_table
from airllm.memory.passing import pass_through
from airllm.memory.residency import Residency, open_layers, residency


class OpenedModel:
    """A file's `config`, and its weights, laid out for a backend: in host memory, on a device, or in both.
    `Model` computes with them.

    `ops` is a `KernelBackend` or `ExactOps`; `max_memory` is in bytes. If it is None and the model does not
    fit in the memory that is available, it is that. With `processes`, this process holds a part of each layer
    and of the output, and `config` describes that part. All processes call the same methods with the same
    tokens and get the same logits. `device` says what of it is on a device, None: nothing, before
    `move_to_device`. Raises ModelFileError, OSError, MemoryBudgetError.
    """

    residency: Residency
    on_device: OnDevice | None = None
    why_not_on_device = ""

    def __init__(
        self,
        path: str | PathLike[str],
        ops: Any,
        max_memory: int | None = None,
        context: int | None = None,
        cache_dtype: str = "f16",
        processes: Processes | None = None,
        device: DeviceOptions | None = DeviceOptions(),  # noqa: B008  # frozen
        fallback_backends: Sequence[str] = (),
    ):
        self._device_options, self._fallbacks = device, Fallbacks(fallback_backends)
        with ExitStack() as undo:
            self.weights = undo.enter_context(open_weights(path))
            self.config = config_of(self.weights)
            if self.config.encoding and processes:
                raise ValueError(f"{path} is an encoder: processes do not share it, expected one process")
            self._tensors = tensors = NamedTensors(self.weights, self.config)
            layers = open_layers(tensors)
            self.embedding = open_table(tensors, "token_embedding")
            self.output = self.embedding if self.config.tied_embeddings else open_table(tensors, "output")
            self.output_norm = open_output_norm(tensors)
            self._layer_inputs = LayerInputs(tensors) if self.config.layer_input else None
            self.rotations = Rotations(self.config, tensors)
            self._cache_dtype = cache_dtype
            self._adapters: list[tuple[Adapter, float]] = []
            self._pairs: dict[str, Pair] = {}
            unpacked = isinstance(ops, ExactOps), unpacks_cache(ops, cache_dtype)
            limit = memory_limit(tensors, max_memory, context, cache_dtype, share=bool(processes))
            self._on_host = residency(tensors, layers, limit, context, cache_dtype, *unpacked)
            self.residency, self.layers = self._on_host, self._on_host.layers
            self.shard = Shard(self.config, processes) if processes else None
            if self.shard:
                self.layers = [self.shard.layer(layer) for layer in self.layers]
                self.output, self.config = self.shard.output(self.output), self.shard.config
            self._lay_out(ops)
            try:
                self.use(ops)
            except DeviceFault as fault:
                self.fall_back(fault)
            undo.pop_all()

    def _lay_out(self, ops: Any) -> None:
        """Bring the weights into memory, in the order in which the backend's kernels read them."""
        interleave, formats = ops.extension("interleave"), ops.extension("interleaved_formats")
        many_rows = bool(self.config.encoding)  # whose kernels read weights as stored
        if self.residency.whole and interleave and not many_rows:
            copies = KernelCopies(self._tensors, interleave, formats)
            self.layers, self.output = copies.replace(self.layers, self.output)
            self.residency.fill(copies.pieces(self.layers, self.output))
        else:
            self.residency.fill()
        self._laid_out = self.layers

    def use(self, ops: Any) -> None:
        """Run on these ops from now on, with their native layers and step or their device, if they can."""
        self.ops = self.host_ops = ops
        self.residency, self.layers = self._on_host, self._laid_out
        if self.on_device:
            self.on_device.close()  # before its memory is needed again
        self.on_device = None
        self.on_device = self._move(ops)
        if self.on_device and not self.on_device.embeds:
            self.host_ops = host_ops(ops)
            self.layers = interleave_first(
                self._tensors, self.host_ops, self.layers, self.on_device.plan.first
            )
        self._prepare()

    def move_to_device(self, options: DeviceOptions) -> None:
        """Use the device of its ops from now on, if they have one. Raises what opening it there raises."""
        self._device_options = options
        try:
            self.use(self.ops)
        except DeviceFault as fault:
            self.fall_back(fault)

    def _prepare(self) -> None:
        """Prepare the calls that run layers in host memory, with the adapters in use."""
        adapted = "adapters are added op by op" if self._pairs else ""
        self._attached: Attached = attach(self._pairs, self.layers, self.output)
        self._row_ops: dict[RowKernels | None, Any] = {}
        self.fused = FusedLayers(self.host_ops, self.layers, self.residency.whole, adapted)
        ends = (self.embedding, self.output_norm, self.output)
        self.step = FusedStep(self.ops, self.fused, self.config, *ends)
        self._bound: WeakKeyDictionary[Cache, BoundStep] = WeakKeyDictionary()

    def _move(self, ops: Any) -> OnDevice | None:
        """The model on the device of these ops; None if it stays in host memory: `why_not_on_device`."""
        if self._device_options is None:
            self.why_not_on_device = "it was opened in host memory"
            return None
        given = ops.backend if isinstance(ops, ExactOps) else ops
        there = given.extension("device_ops")
        passing = pass_through(self._tensors, self._on_host, self._device_options) if there else None
        self.why_not_on_device = why_not_on_device(
            given, self.residency.whole or bool(passing), bool(self.shard)
        )
        if self.why_not_on_device:
            self._device_options.refuse(self.why_not_on_device)
            return None
        weights = Weights(self.layers, self.embedding, self.output_norm, self.output, self._layer_inputs)
        place = (self.residency.context, self._cache_dtype, self._device_options, passing)
        try:
            found = Offload(ops, there(), weights, *place, self._pairs).open()
        except NotImplementedError as error:
            self.why_not_on_device = str(error)
            self._device_options.refuse(self.why_not_on_device)
            return None
        self.residency = passing or self.residency
        return found

    @property
    def backend(self) -> Any:
        """The backend that it runs on now."""
        return self.ops.backend if isinstance(self.ops, ExactOps) else self.ops

    # ---- faults ----

    def fall_back(self, fault: DeviceFault) -> None:
        """Run on the next backend from now on. Raises the fault if there is none."""
        ops = self._fallbacks.next_ops(fault, self.ops)
        self._device_options, self.residency = DeviceOptions(), self._on_host
        try:
            self._lay_out(ops)
            self.use(ops)
        except DeviceFault as another:
            self.fall_back(another)

    def adapt(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Use these adapters, each times its scale, and no others, from now on. Layers with adapters run op
        by op. What sequences hold was computed without: drop them. Raises ValueError for adapters that this
        model cannot have; MemoryBudgetError or DeviceFault for those that a device has no room for, and then
        goes on with those from before.
        """
        if adapters and self.config.encoding:
            raise ValueError("adapter: encoders have none, expected a model that generates text")
        if adapters and self.shard:
            raise ValueError("adapter: processes that share a model have none, expected one process")
        before = self._adapters, self._pairs
        self._adapters, self._pairs = list(adapters), join_adapters(adapters)
        try:
            self._adapt()
        except (DeviceFault, MemoryBudgetError) as error:
            if isinstance(error, DeviceFault) and self._fallbacks:
                self.fall_back(error)
                return
            self._adapters, self._pairs = before
            self.use(self.ops)
            raise

    def _adapt(self) -> None:
        if self.on_device and self.on_device.has_room_for(self._pairs):
            self.on_device.adapt(self._pairs)
            self._prepare()
            return
        if self.on_device:
            with self.on_device.faults():
                for cache in self.on_device.caches():  # whose arrays are those of its ops
                    cache.fetch_layers()
        self.use(self.ops)

    @property
    def tensors(self) -> NamedTensors:
        """The tensors of the file by their names."""
        return self._tensors

    @property
    def fingerprint(self) -> str:
        """A string that identifies the model, with its adapters."""
        own = [f"{scale} {adapter.fingerprint}" for adapter, scale in self._adapters]
        whole = fingerprint(self._tensors)
        return hashlib.sha256(" ".join([whole, *own]).encode()).hexdigest()[:32] if own else whole

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, as stored."""
        return weight_bytes(self._tensors)

    def memory_estimate(self, context: int, cache_dtype: str, tokens: int) -> MemoryEstimate:
        """The memory the model takes without a budget, for one sequence of `context` tokens, if at most
        `tokens` go through the layers at once.
        """
        cached = layer_values(self._tensors.config, context) if unpacks_cache(self.ops, cache_dtype) else 0
        return estimate(self._tensors, context, cache_dtype, tokens, unpacked=[cached])

    def __repr__(self) -> str:
        return f"<Model {self.weights.path.name}: {self.config.in_short}, {self.ops!r}>"

    def close(self) -> None:
        """Close the file, and free what is on a device."""
        if self.on_device:
            self.on_device.close()
        self.on_device = None
        self.residency.close()
        self._on_host.close()
        self.weights.close()

    def kernels_of(self, tokens: int) -> RowKernels | None:
        """The kernels that a sequence's next tokens meet, of which there are `tokens` in all, however they
        are cut. None if the backend computes any number of rows alike.
        """
        as_stored = self.ops.extension("rows_as_stored")
        if as_stored is None:
            return None
        native = not self.fused.why_not and not self.shard
        return choose_kernels(self.config, tokens, native, max(as_stored))

    def _ops_for(self, kernels: RowKernels | None) -> Any:
        if kernels not in self._row_ops:
            ops = self.host_ops if kernels is None else self._of_rows(kernels)
            self._row_ops[kernels] = AdaptedOps(ops, self._attached) if self._pairs else ops
        return self._row_ops[kernels]

    def _of_rows(self, kernels: RowKernels) -> RowOps:
        return RowOps(self.ops, kernels, self.ops.extension("rows_as_stored"))
