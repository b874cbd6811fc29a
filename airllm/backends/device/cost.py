"""Measures what a device takes for a launch, a wait, an upload, and for reading weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

from airllm.backends.device.device_ops import DeviceOps
from airllm.backends.device.recording import Pass, record
from airllm.backends.device_cost import DeviceCost
from airllm.formats import FORMATS, Quantized

_ENOUGH, _MOST = 0.03, 15  # seconds and repetitions of a measurement
_LITTLE, _BYTES, _ROW = 1 << 18, 8 << 20, 4096  # bytes of matrices whose products are timed, values in a row
_LAUNCHES, _PRODUCTS = 33, 4  # started before a wait
_FLOATS = ("float32", "float16", "bfloat16")


def median_seconds(call: Callable[[], object]) -> float:
    """Median seconds of a call, after one that is not timed: a few calls, in a fraction of a second."""
    call()
    taken: list[float] = []
    while not taken or (sum(taken) < _ENOUGH and len(taken) < _MOST):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def measure_cost(ops: DeviceOps, device: str, formats: Iterable[str]) -> DeviceCost:
    """Measure a `device` in a fraction of a second, besides the time that its driver takes for compiling."""
    x = ops.to_device(np.ones((1, 64), np.float32))

    def launches(count: int) -> Any:
        y = x
        for _ in range(count):  # of a kind that is never put off, each of the result before
            y = np.maximum(y, np.float32(0))
        return y

    one = _seconds_of(ops, lambda: launches(1))
    launch = max(_seconds_of(ops, lambda: launches(_LAUNCHES)) - one, 1e-9) / (_LAUNCHES - 1)
    wait = max(one - launch, 1e-9)
    read = {kind: _read_rate(ops, kind, launch, wait) for kind in formats if _has_kernels(ops, kind)}
    return DeviceCost(device, launch, wait, _upload_rate(ops, wait), read)


def _seconds_of(ops: DeviceOps, compute: Callable[[], Any]) -> float:
    """Median seconds until the host has what is computed: by launches that are recorded, as those of tokens
    are, where the device can.
    """
    if not hasattr(getattr(ops, "place", None), "record"):
        return median_seconds(lambda: compute().numpy())
    passes = [Pass(token, holds=token == 2) for token in range(3)]
    for each in passes:
        with ops.noting(each):
            compute().numpy()
    recording = record(ops.place, passes, [])
    assert recording, "the same launches of the same arrays can be recorded"
    return median_seconds(lambda: recording.run(0, []))


def _has_kernels(ops: DeviceOps, kind: str) -> bool:
    return kind in _FLOATS or kind in ops.place.formats()


def _upload_rate(ops: DeviceOps, wait: float) -> float:
    given = np.ones(_BYTES // 4, np.float32)

    def upload() -> None:
        ops.to_device(given)[:1].numpy()

    return given.nbytes / max(median_seconds(upload) - wait, 1e-9)


def _read_rate(ops: DeviceOps, kind: str, launch: float, wait: float) -> float:
    """Bytes per second of products with a matrix of zeros; of a slow device, with a small one."""
    taken, read = 0.0, 0
    for nbytes, products in ((_LITTLE, 1), (_BYTES, _PRODUCTS)):
        if taken * _BYTES * _PRODUCTS > _ENOUGH * _LITTLE:
            break
        launches = 2 * products - 1  # with their sums
        taken = max(_seconds_of_products(ops, kind, nbytes, products) - wait - launches * launch, 1e-9)
        read = nbytes * products
    return read / taken


def _seconds_of_products(ops: DeviceOps, kind: str, nbytes: int, count: int) -> float:
    weight, x = ops.to_device(_matrix(kind, nbytes)), ops.to_device(np.ones((1, _ROW), np.float32))

    def products() -> Any:
        total = ops.linear(x, weight)
        for _ in range(count - 1):  # a product that nobody uses may never be computed
            total = np.add(total, ops.linear(x, weight))
        return total

    return _seconds_of(ops, products)


def _matrix(kind: str, nbytes: int) -> Any:
    if kind in _FLOATS:
        dtype = np.dtype(kind)
        return np.zeros((nbytes // dtype.itemsize // _ROW, _ROW), dtype)
    row = _ROW // FORMATS[kind].values * FORMATS[kind].bytes
    return Quantized(np.zeros((nbytes // row, row), np.uint8), kind)
