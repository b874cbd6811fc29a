"""An open WebGPU device as the place of a model's arrays: see `airllm.backends.device.place.Place`.

Launches wait until a result is read, so a token is one submit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from airllm.backends.device.faults import COMPILE, LOST, MEMORY
from airllm.backends.device.fused_ops import FusedOps
from airllm.backends.device.launch_plan import is_quantized
from airllm.backends.device.recording import Recorded
from airllm.backends.devices import host_memory
from tensor_ops_webgpu import expert_launches, mixture_launches, recurrent_launches, tensor_launches
from tensor_ops_webgpu.devices import driver
from tensor_ops_webgpu.engine import Block, Bound, Engine, NotCompiled, Places, engine, forget_engines
from tensor_ops_webgpu.kernel_text import stored_formats
from tensor_ops_webgpu.launches import KERNELS, KEYS, Call, Launch, Plan, plan_of
from tensor_ops_webgpu.selection import choice

_LOSS = ("device lost", "device is lost", "devicelost", "could not map buffer", "work done status")
_MOST_WAITING = 1 << 26  # bytes of arrays that waiting launches keep


class _Waiting(NamedTuple):
    """A launch that is not submitted yet, and its memory, which nothing may reuse until then."""

    launch: Launch
    memory: Mapping[str, tuple[Block, int, int]]


class WebGPUPlace:
    """Blocks of an open device, transfers, and launches that wait for a submit."""

    counters = driver.counters
    writes_inputs = False  # a buffer is not read and written by one launch
    even_keys = KEYS  # attention takes a step more for so many

    def __init__(self, opened: Engine):
        self.engine, self.label = opened, opened.label
        self.alignment = opened.alignment
        self._waiting: list[_Waiting] = []
        self._replayed: Sequence[Bound] = ()  # wait too, before the others
        self._held = 0

    def allocate(self, nbytes: int) -> Block:
        return self.engine.block(nbytes, "an array on the device")

    def upload(self, buffer: Block, array: np.ndarray) -> None:
        self.engine.write(buffer, array)

    def download(self, buffer: Block, offset: int, out: np.ndarray) -> None:
        self._submit((buffer, offset, out))

    def plan(self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], outs: Any) -> Plan:
        if op == "assign":
            return tensor_launches.assign(arrays, outs["out"])
        if op == "assign_q8_0":
            return tensor_launches.assign_q8_0(arrays, outs["out"])
        if op == "combine":
            return tensor_launches.combine(arrays, outs["out"], parameters)
        if op == "rope_append":
            return tensor_launches.rope_append(arrays, outs, parameters)
        if op == "residual_norms":
            return tensor_launches.residual_norms(arrays, outs, parameters)
        if op.endswith("_experts"):
            return expert_launches.plan(op, arrays, outs, parameters, self.engine.lanes)
        if op in mixture_launches.LAUNCHES:
            return mixture_launches.plan(op, arrays, outs, parameters, self.engine.lanes)
        if op in recurrent_launches.LAUNCHES:
            return recurrent_launches.plan(op, arrays, outs, parameters)
        if op == "gated_linear":
            return tensor_launches.gated_linear(
                arrays, outs["out"], parameters["activation"], self.engine.lanes
            )
        return plan_of(Call(op, arrays, parameters, outs, self.engine.lanes))

    def run(self, plan: Plan, memory: Mapping[str, tuple[Block, int, int]]) -> None:
        for launch in plan.launches:
            self.engine.check_steps(launch)
            self._waiting.append(_Waiting(launch, memory))
        written = {name for launch in plan.launches for name in launch.outputs.values()}
        self._held += sum(memory[name][2] for name in written)
        if self._held > _MOST_WAITING:
            self._submit()

    def _submit(self, wanted: tuple[Block, int, np.ndarray] | None = None) -> None:
        """Submit all launches that wait; then wait for the array that is wanted."""
        waiting = [(each.launch, each.memory) for each in self._waiting]
        self.engine.submit(waiting, wanted, self._replayed)
        self._waiting.clear()
        self._held, self._replayed = 0, ()

    def record(self, launches: Sequence[Recorded]) -> Replay:
        """The launches, bound to their memory."""
        return Replay(self, launches)

    def replay(self, launches: Sequence[Bound]) -> None:
        """Start recorded launches, which wait for the next submit."""
        if self._waiting or self._replayed:
            self._submit()
        self._replayed = launches
        self.counters.add(replayed=len(launches))

    # ---- uploads while launches run: `airllm.backends.device.staging.Bus` ----

    def mark(self) -> Any:
        self._submit()
        return self.engine.fence()

    def begin_upload(self, buffer: Block, pieces: Sequence[np.ndarray], after: Any) -> None:
        """Copy to the driver's memory now; its queue copies to the device, after what was submitted. The wait
        keeps the driver from holding more than the two places' bytes.
        """
        if after is not None:
            after.wait()
            self.counters.add(waits=1)
        self.engine.write(buffer, pieces[0] if len(pieces) == 1 else np.concatenate(pieces))

    def finish_upload(self, upload: None) -> None:
        """Nothing: the queue is in order."""

    def wait_upload(self, upload: None) -> None:
        """Nothing: the driver has a copy."""

    def pinned(self, nbytes: int) -> None:
        """None: WebGPU copies from memory of its own."""

    # ---- memory and faults ----

    def free_memory(self) -> int | None:
        """Free bytes of the host, if the device shares its memory; else None, which WebGPU does not say."""
        return None if self.engine.has_own_memory else host_memory()[1]

    def fault(self, error: Exception) -> str:
        """The kind of fault that an error of the driver is; "" for other errors."""
        import wgpu

        if isinstance(error, NotCompiled):
            return COMPILE
        if isinstance(error, wgpu.GPUOutOfMemoryError):
            return MEMORY
        if not isinstance(error, wgpu.GPUError) and not _tells_of_loss(error):
            return ""
        forget_engines()
        return LOST

    # ---- kernels ----

    def has(self, op: str) -> bool:
        return op in KERNELS

    def fuses(self, name: str, arrays: Mapping[str, Any]) -> bool:
        if name == "mixture":
            return mixture_launches.fuses(arrays, self.engine.buffers)
        if name == "residual_norms":
            return len(arrays) + 2 <= self.engine.buffers
        if name == "convolved_scan":
            return recurrent_launches.fuses(arrays, self.engine.buffers)
        if name == "normed_linear":
            return mixture_launches.fuses_norm(arrays, self.engine.buffers)
        if name == "latent_append":
            return mixture_launches.fuses_latents(arrays, self.engine.buffers)
        if name in ("linear_beside", "linear_sum"):
            return all(map(mixture_launches.in_units, arrays.values()))
        if name == "gated_linear":
            return is_quantized(arrays["weight"])
        return arrays["cache"].shape[-1] % 2 == 0  # halves are written in pairs

    def attention_splits(self, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
        """One: a work-group sees all keys of a query."""
        return 1

    def most_tokens(self, op: str, numbers: Mapping[str, Any]) -> int | None:
        """The most tokens that a launch of a scan takes; None for no limit."""
        most = self.engine.most_steps
        return most and max((most - 1) // recurrent_launches.token_steps(op, numbers), 1)

    def formats(self) -> Sequence[str]:
        return list(stored_formats())


class Replay:
    """`airllm.backends.device.recording.Replay`."""

    def __init__(self, place: WebGPUPlace, launches: Sequence[Recorded]):
        self._place, self._launches = place, launches
        given = [(each.launch, _whole(each.memory)) for each in launches]
        self._bound, self._numbers = place.engine.record(given)

    def run(self, tokens: int) -> None:
        changed = {
            n: [each.numbers(tokens).get(i, number) for i, number in enumerate(each.launch.arguments)]
            for n, each in enumerate(self._launches)
            if each.steps
        }
        self._place.engine.change_numbers(self._numbers, changed)
        self._place.replay(self._bound)


def _whole(memory: Places) -> Places:
    """Memory up to the end of each block: later tokens read more of it."""
    return {name: (block, at, block.buffer.size - at) for name, (block, at, _) in memory.items()}


def _tells_of_loss(error: Exception) -> bool:
    """Whether the package, which has no class for it, reports a lost device, or a map that it ended."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in text for each in _LOSS)


def device_ops() -> FusedOps:
    """The ops on arrays that stay on the device in use."""
    return FusedOps("webgpu", WebGPUPlace(engine(choice.in_use())))
