"""Run an op on an open device: allocate its results and launch its kernels in order."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.device.ops import memory_of
from tensor_ops_webgpu.engine import Block, Engine
from tensor_ops_webgpu.launches import Call, plan_of


def compute_on_host(
    opened: Engine,
    op: str,
    arrays: Mapping[str, Any],
    parameters: Mapping[str, Any],
    results: Mapping[str, Any],
) -> None:
    """Compute an op's results from NumPy arrays on an open device, and wait for them."""
    arrays = {n: np.ascontiguousarray(a) if type(a) is np.ndarray else a for n, a in arrays.items()}
    call = Call(op, arrays, parameters, results, opened.lanes)
    blocks = {n: opened.upload(memory_of(a), f"{op}: {n}") for n, a in arrays.items() if call.has(n)}
    memory = compute(opened, call, blocks)
    for name, out in results.items():
        opened.download(memory[name], out)


def compute(opened: Engine, call: Call, blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Compute the results in new memory, never an input's: kernels must not read memory that they write."""
    plan = plan_of(call)
    sizes = {name: out.nbytes for name, out in call.results.items()} | dict(plan.scratch)
    memory = {name: opened.block(size, f"{call.op}: {name}") for name, size in sizes.items()}
    for launch in plan.launches:
        opened.launch(launch, {**blocks, **memory})
    return memory
