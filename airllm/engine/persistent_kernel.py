"""`PersistentKernel(model="model.gguf")`, then `kernel.step(token) -> logits`: decoding as one call."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Hashable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from airllm.backends.api.kernel_backend import KernelBackend, init_backend, options_of, with_options
from airllm.engine.devices import backend_choice
from airllm.engine.devices.graph_decode import CapturedStep, capture_step
from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.exact_ops import ExactOps
from airllm.engine.layers.native_decode import BoundStep
from airllm.engine.model import Model
from airllm.engine.parallel.mpi import MpiProcesses, mpi_processes
from airllm.engine.parallel.threads import Group, Rank, join_group
from airllm.files.hub import locate
from airllm.memory.cache_layout import CacheLayout, dtype_named
from airllm.memory.device_plan import DeviceOptions
from airllm.memory.kv_cache import Cache, ContextFull, check_context, token_id

__all__ = ["PersistentKernel"]

MODES = ("decode",)
OPTIONS = ("max_num_pages", "context", "cache_dtype")  # of every backend


class PersistentKernel:
    """Decodes one sequence of a model, with one call for each step.

    `compile` plans a step once: it checks and lays out the weights and fixes memory and threads. On the C++
    backend, `step(token)` is then one call from token to logits, on a thread pool that persists between
    steps. On CUDA it is one launch of a captured graph: weights, keys and values are on the device, and a
    prompt runs token by token. Otherwise it runs op by op. `plan` says which, and why.

    Args:
        mode: "decode".
        model: A path, a name as `AutoModel.from_pretrained` takes it, an engine, or a `Model`, whose file is
            opened again.
        backend: A backend that must run here. If it does not, `fallback_backends` are tried in order. None:
            the backend of an opened model, else the default one.
        world_size, mpi_rank: `world_size` kernels share the model, and this is number `mpi_rank`. Each has
            some heads and a part of the feed-forward of all layers. All must take the same steps. Under
            `mpiexec` each is in its own process. Otherwise all are in this process, each with a thread, on
            the device of its rank if the backend has several; the first call computes the step of all.
        num_workers: (cpp) Threads of a step. None: all processors, divided among the kernels of a machine.
        max_num_pages: Most pages of memory (`mmap.PAGESIZE` bytes each) for keys and values.
        context: Maximum number of tokens of the sequence, as in `LayerWiseInferenceEngine`.
        cache_dtype: "f16", "f32" or "q8_0" for keys and values, as in `LayerWiseInferenceEngine`.
        use_cutlass_kernel: (cuda) True: products of many rows must use cuBLAS, whose kernels are CUTLASS's.

    Raises ValueError for another mode, an option that the backend does not have, a model that cannot be
    divided into `world_size` parts, or missing kernels; BackendUnavailable, also a ValueError, if no named
    backend runs here. Errors of opening the model are raised by `compile`.
    """

    def __init__(
        self,
        mode: str = "decode",
        *,
        model: str | PathLike[str] | LayerWiseInferenceEngine | Model,
        backend: str | None = None,
        fallback_backends: Sequence[str] = (),
        world_size: int = 1,
        mpi_rank: int = 0,
        num_workers: int | None = None,
        max_num_pages: int | None = None,
        context: int | None = None,
        cache_dtype: str | None = None,
        **options: Any,
    ):
        _check(mode, world_size, mpi_rank)
        if num_workers is not None:
            options["num_workers"] = num_workers
        self._given = model
        self._ops = _ops_of(model, backend, fallback_backends, options)
        # Checked after the backend: if it is missing, that may be why these have no sensible value.
        if max_num_pages is not None:
            _whole("max_num_pages", max_num_pages, 1)
        if context is not None:
            check_context(context)
        self._group: Group | None = None
        self._processes: MpiProcesses | Rank | None = None
        if world_size > 1:
            of = str(model) if isinstance(model, (str, PathLike)) else id(model)
            sizes = (context, cache_dtype, max_num_pages, *sorted(options.items()))
            self._processes = self._join(world_size, mpi_rank, (of, self._ops.name(), world_size, sizes))
        if self._processes and num_workers is None and "num_workers" in options_of(self._ops.name()):
            share = max(_processors() // self._processes.on_this_machine(), 1)
            self._ops = with_options(self._ops.name(), {"num_workers": share})
        self._pages, self._context, self._cache_dtype = max_num_pages, context, cache_dtype
        self._model: Model | None = None
        self._cache: Cache | None = None
        self._captured: CapturedStep | None = None
        self._device = ""
        self._why_not_captured = ""
        self._bound: BoundStep | CapturedStep | None = None
        self._last: int | None = None
        self._closed = False

    def _join(self, size: int, rank: int, key: Hashable) -> MpiProcesses | Rank:
        """Join those that share the model: MPI's processes, or this process's kernels of the same `key`."""
        if found := mpi_processes(size, rank):
            return found
        self._group = join_group(key, size, rank, self, _device_setter(self._ops))
        return Rank(rank, size, self._group.meeting)

    # ---- what it is ----

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self._ops.name()

    @property
    def plan(self) -> str:
        """How a step runs: "cpp: one call a step ...", or "python: op by op" and why."""
        if not self._model:
            return f"{self.backend}: not compiled"
        how = self._how(self._model)
        if self._processes:
            c = self._model.config
            part = f"{c.heads} heads and {c.kv_heads} key-value heads of each layer"
            which = f"{self._processes.rank} of {self._processes.size}"
            how += f"; part {which} on {self._device}" if self._group else f"; process {which}"
            how += f": {part}"
        return f"{self.backend}: {how}"

    def _how(self, model: Model) -> str:
        if self._captured:
            return f"one launch of a captured graph a step, {self._device}"
        why_not = self._why_not_captured or model.step.why_not
        return f"op by op: {why_not}" if why_not else f"one call a step, {self._device}"

    @property
    def length(self) -> int:
        """Number of tokens of the sequence."""
        return self._cache.length if self._cache else 0

    @property
    def capacity(self) -> int:
        """Maximum number of tokens of the sequence, by the context and `max_num_pages`."""
        return self._require_compiled()[1].capacity

    def __repr__(self) -> str:
        return f"<PersistentKernel {self.plan}>"

    # ---- what it does ----

    def compile(self) -> PersistentKernel:
        """Open the model and plan the step, unless that is done already. Returns the kernel."""
        if self._closed:
            raise RuntimeError("this PersistentKernel is closed: create another one")
        if self._group:
            self._group.prepare()
        elif not self._model:
            self._open()
        return self

    def _open(self) -> None:
        exact = isinstance(getattr(_open_model(self._given), "ops", None), ExactOps)
        ops = ExactOps(self._ops) if exact else self._ops
        dtype = dtype_named(self._cache_dtype or getattr(self._given, "cache_dtype", "f16"))
        context = self._context or getattr(self._given, "context", None)
        captures = self._ops.extension("DecoderGraph") is not None  # which brings the weights there itself
        options = None if captures else DeviceOptions()
        model = Model(_path_of(self._given), ops, None, context, dtype, self._processes, options)
        try:
            self._cache = Cache(model.config, self._room(model, dtype), dtype, windowed=True)
            self._captured, self._why_not_captured = capture_step(model, self._cache)
            if captures and not self._captured:
                model.move_to_device(DeviceOptions())
        except BaseException:
            model.close()
            raise
        device = self._ops.extension("device")  # the device of this thread
        self._device = device() if device else self._ops.device()
        self._model = model

    def step(self, token: int) -> np.ndarray:
        """Logits (vocabulary), float32, after `token`, which continues the sequence.

        Compiles first if necessary. Raises ContextFull, a ValueError, if there is no room for the token.
        """
        bound, cache = self._bound, self._cache
        token = token_id(token, "step")
        logits = bound.run(token, cache) if bound and cache else None
        if logits is None:
            return self.prefill([token])
        self._last = token
        return logits

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits (vocabulary), float32, after the last of `tokens`, which continue the sequence."""
        self.compile()
        tokens = [token_id(token, "prefill") for token in tokens]
        return self._shared_step("prefill", tokens) if self._group else self._prefill(tokens)

    def _prefill(self, tokens: list[int]) -> np.ndarray:
        model, cache = self._model, self._cache
        assert model and cache
        self._refuse(model, cache, tokens)
        pending = model.pending(tokens, cache)
        if self._captured:
            logits, self._bound = self._captured.prefill(pending, cache), self._captured
        else:
            (logits,) = model.run([pending], [cache])
            self._bound = model.bind(cache)
        self._last = tokens[-1]
        return logits

    def __call__(self, token: int | None = None) -> np.ndarray:
        """`step(token)`. Without a token, repeat the last step at the same position, for benchmarks, or
        at the next one with a recurrent state; token 0 if there was no step.
        """
        if token is not None:
            return self.step(token)
        self.compile()
        return self._shared_step("repeat") if self._group else self._repeat()

    def _repeat(self) -> np.ndarray:
        token, cache = self._last, self._cache
        if token is not None and cache and not cache.layout.recurrent:  # such a state cannot go back
            cache.truncate(cache.length - 1)
        return self._prefill([token or 0]) if self._group else self.step(token or 0)

    def reset(self) -> None:
        """Start a new sequence."""
        if self._group and self._model:
            self._shared_step("reset")
        else:
            self._reset()

    def _reset(self) -> None:
        self._last = self._bound = None
        if self._cache:
            self._cache.truncate(0)

    def _shared_step(self, name: str, *arguments: Any) -> Any:
        """Take a step with all kernels of this process that share the model."""
        assert self._group and self._processes
        return self._group.take(self._processes.rank, name, *arguments)

    def carry_out(self, name: str, *arguments: Any) -> Any:
        """This kernel's part of a shared step, called by `airllm.engine.parallel.threads`."""
        return getattr(self, f"_{name}")(*arguments)

    def close(self) -> None:
        """Close the model's file and drop the sequence. A later step raises RuntimeError."""
        if self._group and self._processes:
            self._group.leave(self._processes.rank)
        if self._model:
            self._model.close()
        self._model = self._cache = self._bound = self._captured = None
        self._closed = True

    def __enter__(self) -> PersistentKernel:
        return self.compile()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_compiled(self) -> tuple[Model, Cache]:
        self.compile()
        assert self._model and self._cache
        return self._model, self._cache

    def _room(self, model: Model, dtype: str) -> int:
        """Maximum number of tokens of the sequence."""
        context = model.residency.context
        if self._pages is None:
            return context
        each = CacheLayout(model.config, context, dtype).token_bytes()
        room = self._pages * mmap.PAGESIZE // each
        if not room:
            expected = f"{-(-each // mmap.PAGESIZE)} or more: a token's keys and values have {each} bytes"
            raise ValueError(f"max_num_pages has value {self._pages}, expected {expected}")
        return min(context, room)

    def _refuse(self, model: Model, cache: Cache, tokens: list[int]) -> None:
        """Raises ValueError, such as ContextFull, if these tokens cannot come next."""
        vocabulary = model.config.vocabulary
        if not tokens:
            raise ValueError("step: tokens has 0 tokens, expected one or more")
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            raise ValueError(f"step: token has value {wrong}, expected 0 to {vocabulary - 1}")
        if cache.length + len(tokens) > cache.capacity:
            found = f"step: the sequence has {cache.length} tokens and would get {len(tokens)} more"
            why = "the context (context=)"
            if cache.capacity < model.residency.context:
                why = f"max_num_pages={self._pages} pages of {mmap.PAGESIZE} bytes hold no more"
            raise ContextFull(f"{found}, expected at most {cache.capacity} in all: {why}")


def _check(mode: str, world_size: int, mpi_rank: int) -> None:
    if mode not in MODES:
        raise ValueError(f"mode has value {mode!r}, expected one of {', '.join(map(repr, MODES))}")
    _whole("world_size", world_size, 1)
    _whole("mpi_rank", mpi_rank, 0)
    if mpi_rank >= world_size:
        expected = f"0 to {world_size - 1}: world_size={world_size}"
        raise ValueError(f"mpi_rank has value {mpi_rank}, expected {expected}")


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} has value {value!r}, expected a whole number from {least} on")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device_setter(ops: KernelBackend) -> Callable[[int], None]:
    """A function that selects the device of a rank's thread, if the backend can use several at once."""
    use, infos = ops.extension("use_device"), ops.extension("device_infos")
    places = [info.get("index", i) for i, info in enumerate(infos())] if use and infos else []
    return lambda rank: use(places[rank % len(places)]) if places else None


def _open_model(model: Any) -> Any:
    """The `Model` that was given, also of an engine; a path is returned unchanged."""
    return model.model if isinstance(model, LayerWiseInferenceEngine) else model


def _path_of(model: Any) -> Path:
    model = _open_model(model)
    if not isinstance(model, Model):
        return locate(model)
    if model.residency.limit is not None:
        expected = "one without max_memory that fits: a PersistentKernel keeps all weights in memory"
        raise ValueError(f"model has a budget of memory ({model.residency.limit}), expected {expected}")
    return model.weights.path


def _fastest(path: str | PathLike[str]) -> KernelBackend:
    """The first backend of the order if it keeps weights on its device, else the engine's choice."""
    first = init_backend("auto")
    if first.extension("DecoderGraph"):
        return first
    return init_backend(backend_choice.choose_backend(backend_choice.Opening(locate(path))).name)


def _ops_of(
    model: Any, backend: str | None, fallbacks: Sequence[str], options: dict[str, Any]
) -> KernelBackend:
    model = _open_model(model)
    if not isinstance(model, (Model, str, PathLike)):
        kind = type(model).__name__
        raise TypeError(f"model has type {kind}, expected a path, a LayerWiseInferenceEngine or a Model")
    own = None
    if isinstance(model, Model) and backend is None:
        own = model.ops.backend if isinstance(model.ops, ExactOps) else model.ops
    named = backend is not None or bool(fallbacks)
    found = own or (init_backend(backend or "auto", fallbacks) if named else _fastest(model))
    unknown = [name for name in options if name not in options_of(found.name())]
    if unknown:
        known = ", ".join((*OPTIONS, *options_of(found.name())))
        what = f"no option {unknown[0]!r} on the backend {found.name()!r}"
        raise ValueError(f"PersistentKernel has {what}, expected one of: {known}")
    return with_options(found.name(), options) if options else found
