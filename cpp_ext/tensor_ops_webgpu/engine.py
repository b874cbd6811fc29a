"""The open resources of a device: pipelines and a buffer pool."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensor_ops_webgpu.codebooks import codebook_table
from tensor_ops_webgpu.devices import Device, driver
from tensor_ops_webgpu.kernel_text import text
from tensor_ops_webgpu.launches import LANES, LANES_ON_CPU, Launch

_KEPT = 1 << 28  # bytes of freed buffers to keep
_NUMBERS = 512  # bytes of the largest struct of numbers
_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")
_BUFFERS, _MOST_BUFFERS = "max-storage-buffers-per-shader-stage", 10  # of a kernel
# Mesa's llvmpipe silently ends an invocation after this many iterations of all its loops.
_LLVMPIPE_STEPS = 65535
_opening = threading.RLock()

Places: TypeAlias = Mapping[str, tuple["Block", int, int]]  # blocks, offsets in them, and bytes from there


class NotCompiled(RuntimeError):
    """A device does not compile a kernel."""


class Block:
    """A buffer on a device; it returns to the engine when it is released."""

    def __init__(self, engine: Engine, buffer: Any):
        self.engine, self.buffer = engine, buffer

    def __del__(self) -> None:
        self.engine.freed.append(self.buffer)  # may run in any thread: append is atomic


class Bound(NamedTuple):
    """A launch that is ready: its pipeline, the group of its memory and numbers, and its grid."""

    pipeline: Any
    group: Any
    groups: int


class Numbers(NamedTuple):
    """The numbers of recorded launches: the buffer that has them, what is in it, and where each's begin."""

    uniforms: Any
    every: bytearray
    starts: Sequence[int]


class Fence:
    """Ends when the device has done all that was submitted before: then a buffer's copy can be mapped."""

    def __init__(self, buffer: Any):
        self._buffer, self._mapped = buffer, buffer.map_async("READ")

    def wait(self) -> None:
        """Return when it has ended."""
        self._mapped.sync_wait()
        self._buffer.unmap()


class Engine:
    """An open device: its queue, its pipelines (compiled when first needed), and its buffers."""

    def __init__(self, device: Device):
        import wgpu

        self.lanes = LANES_ON_CPU if device.kind == "CPU" else LANES
        self.label, self.lock = device.label, threading.RLock()
        self.has_own_memory = device.kind == "GPU"
        self.most_steps = _LLVMPIPE_STEPS if device.name.startswith("llvmpipe") else None
        self.limits = {name: device.adapter.limits[name] for name in _LIMITS}
        self.buffers = min(device.adapter.limits[_BUFFERS], _MOST_BUFFERS)
        limits = {**self.limits, _BUFFERS: self.buffers}
        self.handle: Any = device.adapter.request_device_sync(required_limits=limits)
        self.usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        uniform = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._numbers = self.handle.create_buffer(size=_NUMBERS, usage=uniform)
        self._nothing = self.handle.create_buffer(size=16, usage=self.usage)
        self._pipelines: dict[tuple, Any] = {}
        self.alignment = self.handle.limits["min-storage-buffer-offset-alignment"]
        self._apart = self.handle.limits["min-uniform-buffer-offset-alignment"]
        self._read: Any = None
        self._many_numbers: Any = None  # of all launches of a submit
        self.freed: deque = deque()
        # All buffers: one held only by a Block would be finalized with it if both are in a cycle.
        self._held: set = set()
        self._free: dict[int, list] = {}
        self._kept = 0

    @property
    def _limit(self) -> str:
        return f"a limit of this device, {self.label}"

    # ---- memory ----

    def block(self, size: int, what: str) -> Block:
        """Allocate `size` bytes; NotImplementedError that names `what` if the device cannot bind so many."""
        if size > (most := min(self.limits.values())):
            raise NotImplementedError(f"{what} has {size} bytes, expected at most {most}: {self._limit}")
        with self.lock:
            self._collect()
            room = _room(size)
            if buffers := self._free.get(room):
                self._kept -= room
                return Block(self, buffers.pop())
            buffer = self.handle.create_buffer(size=room, usage=self.usage)
            self._held.add(buffer)
            return Block(self, buffer)

    def _collect(self) -> None:
        """Return released buffers to the pool."""
        while self.freed:
            buffer = self.freed.popleft()
            if self._kept + buffer.size > _KEPT:
                self._held.remove(buffer)
                buffer.destroy()
                continue
            self._kept += buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)

    def upload(self, array: np.ndarray, what: str) -> Block:
        """Copy a dense array to a new block."""
        block = self.block(array.nbytes, what)
        self.write(block, array)
        return block

    def write(self, block: Block, array: np.ndarray) -> None:
        """Copy a dense array to the beginning of a block."""
        flat = array.reshape(-1).view(np.uint8)
        if rest := -flat.size % 4:  # copies must be whole words
            flat = np.concatenate([flat, np.zeros(rest, np.uint8)])
        if flat.size:
            with self.lock:
                self.handle.queue.write_buffer(block.buffer, 0, flat)
            driver.copied.add()
            driver.counters.add(uploaded=flat.nbytes)

    def download(self, block: Block, out: np.ndarray) -> None:
        """Wait for a block's values and copy them to a dense array."""
        with self.lock:
            found = self.handle.queue.read_buffer(block.buffer, 0, -(-out.nbytes // 4) * 4)
        _fill(out, found)

    # ---- kernels ----

    def launch(self, launch: Launch, blocks: Mapping[str, Block]) -> None:
        """Enqueue a kernel with the blocks that its bindings name.

        NotImplementedError if an invocation takes more steps than this device allows.
        """
        self.check_steps(launch)
        with self.lock:
            numbers = b"".join(number.tobytes() for number in launch.arguments)
            self.handle.queue.write_buffer(self._numbers, 0, numbers)
            self._run([self._bind(launch, (self._numbers, 0), _places(launch, blocks))])

    def submit(
        self,
        launches: Sequence[tuple[Launch, Places]],
        wanted: tuple[Block, int, np.ndarray] | None = None,
        first: Sequence[Bound] = (),
    ) -> None:
        """Submit launches at once, behind those that are bound. Then wait for what is `wanted`: the array
        that lies at an offset of a block.
        """
        with self.lock:
            every, starts = self._join([each.arguments for each, _ in launches])
            uniforms = self._room_for_numbers(len(every))
            if launches:
                self._write_numbers(uniforms, 0, every[: starts[-1]])
            self._run([*first, *self._bind_all(launches, uniforms, starts)], wanted)

    def record(self, launches: Sequence[tuple[Launch, Places]]) -> tuple[list[Bound], Numbers]:
        """Launches for `submit`, and their numbers, which may change between submits."""
        with self.lock:
            every, starts = self._join([each.arguments for each, _ in launches])
            uniforms = self._new_numbers(len(every))
            self._write_numbers(uniforms, 0, every)
            return self._bind_all(launches, uniforms, starts), Numbers(uniforms, every, starts)

    def change_numbers(self, of: Numbers, changed: Mapping[int, Sequence[Any]]) -> None:
        """Give recorded launches other numbers, by their places among the launches."""
        for place, numbers in changed.items():
            given = b"".join(number.tobytes() for number in numbers)
            of.every[of.starts[place] : of.starts[place] + len(given)] = given
        if changed:
            first, last = min(changed), max(changed)
            with self.lock:
                part = of.every[of.starts[first] : of.starts[last + 1]]
                self._write_numbers(of.uniforms, of.starts[first], part)

    def _join(self, numbers: Sequence[Sequence[Any]]) -> tuple[bytearray, list[int]]:
        """The structs of numbers one after the other, and where each begins; the last start is their end."""
        given = [b"".join(number.tobytes() for number in each) for each in numbers]
        starts = [0, *accumulate(-(-len(each) // self._apart) * self._apart for each in given)]
        every = bytearray(starts[-1] + _NUMBERS)  # a binding has room for the largest struct
        for at, each in zip(starts, given, strict=False):
            every[at : at + len(each)] = each
        return every, starts

    def _write_numbers(self, uniforms: Any, at: int, numbers: bytearray) -> None:
        self.handle.queue.write_buffer(uniforms, at, numbers)
        driver.counters.add(uploaded=len(numbers))

    def _room_for_numbers(self, nbytes: int) -> Any:
        """A uniform buffer of so many bytes."""
        if self._many_numbers is None or self._many_numbers.size < nbytes:
            self._many_numbers = self._new_numbers(nbytes)
        return self._many_numbers

    def _new_numbers(self, nbytes: int) -> Any:
        return self.handle.create_buffer(size=_room(nbytes), usage=self._numbers.usage)

    def check_steps(self, launch: Launch) -> None:
        """NotImplementedError if an invocation takes more steps than this device allows."""
        if self.most_steps and launch.steps > self.most_steps:
            found = f"webgpu: {launch.kernel} takes {launch.steps} steps on arrays of this size"
            raise NotImplementedError(f"{found}, expected at most {self.most_steps}: {self._limit}")

    def _run(self, launches: Sequence[Bound], wanted: tuple[Block, int, np.ndarray] | None = None) -> None:
        """Submit launches, and read what is wanted."""
        encoder = self.handle.create_command_encoder()
        if launches:
            step = encoder.begin_compute_pass()
            for each in launches:
                step.set_pipeline(each.pipeline)
                step.set_bind_group(0, each.group)
                step.dispatch_workgroups(each.groups)
                driver.launched.add()
            step.end()
        if wanted:
            block, offset, out = wanted
            staging = self._staging(-(-out.nbytes // 4) * 4)
            encoder.copy_buffer_to_buffer(block.buffer, offset, staging, 0, staging.size)
        self.handle.queue.submit([encoder.finish()])
        driver.counters.add(launches=len(launches), submits=1)
        if wanted:
            staging.map_sync("READ")
            _fill(out, staging.read_mapped(copy=False))
            staging.unmap()

    def fence(self) -> Fence:
        """A fence behind all that was submitted."""
        import wgpu

        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        with self.lock:
            mapped = self.handle.create_buffer(size=self._nothing.size, usage=usage)
            encoder = self.handle.create_command_encoder()
            encoder.copy_buffer_to_buffer(self._nothing, 0, mapped, 0, mapped.size)
            self.handle.queue.submit([encoder.finish()])
            driver.counters.add(submits=1)
            return Fence(mapped)

    def _staging(self, nbytes: int) -> Any:
        """A buffer of so many bytes that the host can read."""
        import wgpu

        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        if self._read is None or self._read.size != nbytes:
            self._read = self.handle.create_buffer(size=nbytes, usage=usage)
        return self._read

    def _bind_all(
        self, launches: Sequence[tuple[Launch, Places]], uniforms: Any, starts: Sequence[int]
    ) -> list[Bound]:
        given = zip(launches, starts, strict=False)
        return [self._bind(launch, (uniforms, at), places) for (launch, places), at in given]

    def _bind(self, launch: Launch, numbers: tuple[Any, int], places: Places) -> Bound:
        """A launch with where its numbers and its memory lie."""
        (buffer, start), pipeline = numbers, self._pipeline(launch)
        resources = [{"buffer": buffer, "offset": start, "size": _NUMBERS}]
        for memory in (*launch.inputs.values(), *launch.outputs.values()):
            if memory in places:
                block, offset, nbytes = places[memory]
                resources.append({"buffer": block.buffer, "offset": offset, "size": -(-nbytes // 4) * 4})
            else:
                resources.append({"buffer": self._nothing, "offset": 0, "size": 16})
        if launch.reads_codebooks:
            resources.append({"buffer": self._codebooks, "offset": 0, "size": self._codebooks.size})
        entries = [{"binding": place, "resource": each} for place, each in enumerate(resources)]
        layout = pipeline.get_bind_group_layout(0)
        group = self.handle.create_bind_group(layout=layout, entries=entries)
        return Bound(pipeline, group, launch.groups)

    @functools.cached_property
    def _codebooks(self) -> Any:
        """The buffer of codebooks, uploaded once."""
        words = codebook_table().words
        driver.counters.add(uploaded=words.nbytes)
        return self.handle.create_buffer_with_data(data=words, usage=self._numbers.usage)

    def _pipeline(self, launch: Launch) -> Any:
        key = (
            launch.kernel, launch.group, *launch.formats, launch.lanes, *launch.outputs, launch.missing
        )  # fmt: skip
        if key not in self._pipelines:
            self._pipelines[key] = self._compile(launch)
        return self._pipelines[key]

    def _compile(self, launch: Launch) -> Any:
        """Compile a kernel; NotCompiled with the compiler's log if the device rejects it."""
        import wgpu

        inputs, outputs = len(launch.inputs), len(launch.outputs)
        bindings = ["uniform", *["read-only-storage"] * inputs, *["storage"] * outputs]
        bindings += ["uniform"] * launch.reads_codebooks
        entries = [
            {"binding": place, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for place, kind in enumerate(bindings)
        ]
        try:
            layout = self.handle.create_pipeline_layout(
                bind_group_layouts=[self.handle.create_bind_group_layout(entries=entries)]
            )
            module = self.handle.create_shader_module(label=launch.kernel, code=text(launch))
            compute = {"module": module, "entry_point": "main"}
            return self.handle.create_compute_pipeline(layout=layout, compute=compute)
        except wgpu.GPUError as error:
            found = f"webgpu: {self.label} does not compile {launch.kernel}: {error}"
            raise NotCompiled(found) from error


def _places(launch: Launch, blocks: Mapping[str, Block]) -> dict[str, tuple[Block, int, int]]:
    """Whole blocks as places."""
    return {name: (block, 0, block.buffer.size) for name, block in blocks.items()}


def _fill(out: np.ndarray, found: Any) -> None:
    """Copy what was read from the device to a dense array."""
    out.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8)[: out.nbytes]
    driver.copied.add()
    driver.counters.add(downloaded=out.nbytes, waits=1)


def _room(size: int) -> int:
    """The buffer size for `size` bytes, rounded to few distinct sizes so that freed buffers can be reused."""
    step = 1 << max(8, (size - 1).bit_length() - 3)
    return max(-(-size // step) * step, step)


@functools.cache
def _engine(device: Device) -> Engine:
    return Engine(device)


def forget_engines() -> None:
    """Open devices anew from now on: one was lost."""
    with _opening:
        _engine.cache_clear()


def engine(device: Device) -> Engine:
    """Open a device, once."""
    with _opening:
        driver.start()
        return _engine(device)
