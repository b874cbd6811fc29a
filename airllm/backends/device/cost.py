"""Measures what a device takes for a launch, a wait, an upload, and for reading weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

from airllm.backends.device.device_ops import DeviceOps
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

    def launches(count: int) -> None:
        for _ in range(count):
            y = np.multiply(x, np.float32(1))
        y.numpy()

    one = median_seconds(lambda: launches(1))
    launch = max(median_seconds(lambda: launches(_LAUNCHES)) - one, 1e-9) / (_LAUNCHES - 1)
    wait = max(one - launch, 1e-9)
    read = {kind: _read_rate(ops, kind, launch, wait) for kind in formats if _has_kernels(ops, kind)}
    return DeviceCost(device, launch, wait, _upload_rate(ops, wait), read)


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
        taken = max(_seconds_of_products(ops, kind, nbytes, products) - wait - products * launch, 1e-9)
        read = nbytes * products
    return read / taken


def _seconds_of_products(ops: DeviceOps, kind: str, nbytes: int, count: int) -> float:
    weight, x = ops.to_device(_matrix(kind, nbytes)), ops.to_device(np.ones((1, _ROW), np.float32))

    def products() -> None:
        for _ in range(count):
            y = ops.linear(x, weight)
        y.numpy()

    return median_seconds(products)


def _matrix(kind: str, nbytes: int) -> Any:
    if kind in _FLOATS:
        dtype = np.dtype(kind)
        return np.zeros((nbytes // dtype.itemsize // _ROW, _ROW), dtype)
    row = _ROW // FORMATS[kind].values * FORMATS[kind].bytes
    return Quantized(np.zeros((nbytes // row, row), np.uint8), kind)
