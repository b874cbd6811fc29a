"""Predicts how many tokens a second a model makes on a device that would keep it.

Nothing of the model goes there: a token reads its weights at the rates, and takes as many launches as its
layers have, at the cost that `airllm tune` measured, or that is measured now in a fraction of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from typing import Any

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends import registry, tuning_file
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.backends.config import ConfigError
from airllm.backends.device.cost import measure_cost
from airllm.backends.device_cost import DeviceCost
from airllm.engine.devices.offload import Offload
from airllm.engine.devices.placement import Weights, why_not_on_device
from airllm.engine.layers.layer_inputs import LayerInputs
from airllm.engine.speed import Speed
from airllm.files.open_weights import open_weights
from airllm.formats import Quantized
from airllm.memory.available import memory_limit
from airllm.memory.budget import CONTEXT
from airllm.memory.device_plan import SPLIT, STREAM, DeviceOptions, DevicePlan, is_matrix
from airllm.memory.layers import Layer, open_output_norm, open_table
from airllm.memory.residency import open_layers
from airllm.readable import size

_TUNED = (
    "float16",
    "q8_0",
    "q4_0",
    "q4_k",
    "q6_k",
)  # formats of most models
_LAUNCHES, _ENDS = 8, 3  # launches of a layer, and before and after all layers


def predict_speed(
    path: str | PathLike[str],
    name: str,
    context: int | None,
    cache_dtype: str,
    options: DeviceOptions,
    host: Speed,
) -> Speed | None:
    """The speed of a model on the backend `name`; None if its arrays would not stay on the device. `host`:
    the speed on the processor, for layers that would run there. Raises what opening the model there raises.
    """
    ops = KernelBackend(name)
    with open_weights(path) as file:
        tensors = NamedTensors(file, config_of(file))
        weights = _open(tensors)
        whole = memory_limit(tensors, None, context, cache_dtype) is None
        if why_not_on_device(ops, whole):
            return None
        there = ops.extension("device_ops")()
        most = context or min(tensors.config.context, CONTEXT)
        plans = Offload(ops, there, weights, most, cache_dtype, options).plans()
        cost = cost_of(name, there, list(_bytes_by_format(weights.layers, weights.output)))
        speeds = [_speed_of(plan, weights, cost, host) for plan in plans]
        return max(speeds, key=lambda each: each.tokens_per_second)


def plans_of(path: str | PathLike[str], ops: KernelBackend) -> list[DevicePlan]:
    """The plans by which a model fits into the device of `ops`, with an engine's default settings. Raises
    MemoryBudgetError if it does not.
    """
    with open_weights(path) as file:
        tensors = NamedTensors(file, config_of(file))
        there, context = ops.extension("device_ops")(), min(tensors.config.context, CONTEXT)
        return Offload(ops, there, _open(tensors), context, "f16", DeviceOptions()).plans()


def cost_of(name: str, there: Any, formats: Sequence[str]) -> DeviceCost:
    """The cost of a backend's device: as `airllm tune` measured it, else as it is measured now."""
    with suppress(ConfigError):
        tuned = tuning_file.load()
        kept = tuned.devices.get(name) if tuned else None
        if kept and kept.device == registry.open_backend(name).device and kept.covers(formats):
            return kept
    return measure_cost(there, registry.open_backend(name).device, formats)


def _open(tensors: NamedTensors) -> Weights:
    layers = open_layers(tensors)
    embedding = open_table(tensors, "token_embedding")
    output = embedding if tensors.config.tied_embeddings else open_table(tensors, "output")
    inputs = LayerInputs(tensors) if tensors.config.layer_input else None
    return Weights(layers, embedding, open_output_norm(tensors), output, inputs)


def _speed_of(plan: DevicePlan, weights: Weights, cost: DeviceCost, host: Speed) -> Speed:
    """The speed by a plan: what the device does, and what comes to it."""
    there = weights.layers[plan.first :]
    launches, nbytes = _LAUNCHES * len(there) + _ENDS, _bytes_by_format(there, weights.output)
    seconds = cost.seconds(launches, nbytes)
    reads = f"{size(sum(nbytes.values()))} read there, {launches} launches of {1e6 * cost.launch:.2g} us"
    if plan.form == STREAM:
        moved = sum(_bytes_by_format([weights.layers[i] for i in plan.streamed]).values())
        seconds = max(seconds, moved / cost.upload)
        reads += f", {size(moved)} uploaded at {size(int(cost.upload))}/s"
    if plan.form == SPLIT and host.tokens_per_second:
        seconds += plan.first / plan.layers / host.tokens_per_second
        reads += f", {plan.first} layers on the processor"
    return Speed(1 / seconds, how=reads)


def _bytes_by_format(layers: Sequence[Layer], *others: Any) -> Counter[str]:
    """Bytes of the matrices that a token reads, by format or dtype: of experts, those that it uses."""
    found = Counter[str]()
    every = [each for layer in layers for each in layer.weights.values() if is_matrix(each)]
    for each in [*every, *others]:
        found[_kind(each)] += each.nbytes
    for layer in layers:
        used = range(layer.config.experts_used) if layer.experts else ()
        for weights in (layer.experts.look_up(number) for number in used if layer.experts):
            for each in weights.values():
                found[_kind(each)] += each.nbytes
    return found


def _kind(stored: Any) -> str:
    return stored.format if isinstance(stored, Quantized) else str(stored.dtype)


def measure_devices(names: Sequence[str]) -> dict[str, DeviceCost]:
    """Measure the devices of these backends that keep models, for `airllm tune`; none that automatic mode
    never takes.
    """
    found = {}
    for name in names:
        device_ops = KernelBackend(name).extension("device_ops")
        if device_ops and not registry.why_passed_over(name):
            found[name] = measure_cost(device_ops(), registry.open_backend(name).device, _TUNED)
    return found
