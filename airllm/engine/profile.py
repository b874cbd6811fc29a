"""Times a pass through the layers, by op and by layer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from airllm.engine.model import Model
from airllm.memory.kv_cache import Cache
from airllm.ops.op import OPS

_PRODUCTS = ("linear", "matmul", "matmul_vec")


class Engine(Protocol):
    """The part of an engine that a profile uses."""

    context: int

    @property
    def model(self) -> Model: ...

    def new_cache(self) -> Cache: ...

    def forward(self, tokens: list[int], cache: Cache) -> np.ndarray: ...


@dataclass
class Spent:
    """The time of one op. Its `calls` read `nbytes` of weights, or of keys and values."""

    op: str
    what: str
    format: str
    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0

    @property
    def gb_s(self) -> float:
        """Gigabytes (10**9) read per second; 0 for ops that read no weights, keys or values."""
        return self.nbytes / self.seconds / 1e9


@dataclass
class Profile:
    """Times of `passes` passes of `rows` tokens, after `context` tokens, in seconds summed over the passes.

    `spent`: by op and kind of weight. `layers`: the ops of each layer. `seconds`: everything, including what
    is between the ops. `whole`: the same passes without timers, in native calls if the backend has them.
    """

    rows: int
    passes: int
    context: int
    spent: list[Spent] = field(default_factory=list)
    layers: list[float] = field(default_factory=list)
    seconds: float = 0.0
    whole: float = 0.0

    @property
    def between(self) -> float:
        """Seconds outside the ops: Python, and copies of keys and values."""
        return self.seconds - sum(each.seconds for each in self.spent)


def profile(engine: Engine, rows: int = 1, passes: int = 16, context: int = 64) -> Profile:
    """Time `passes` passes of `rows` tokens: 1 as in generation, many as for a prompt.

    Ops are called and timed one by one, also if the backend could run whole layers in one call. ValueError if
    the tokens do not fit into the engine's context.
    """
    if not engine.model.config.generates:
        kind = "is an encoder" if engine.model.config.encoding else "has no output matrix"
        raise ValueError(f"profile: the model {kind}, expected one that generates text")
    for name, value in {"rows": rows, "passes": passes, "context": context}.items():
        if value < (0 if name == "context" else 1):
            raise ValueError(
                f"profile: {name} has value {value}, expected {0 if name == 'context' else 1} or more"
            )
    if context + rows > engine.context:
        expected = f"at most the {engine.context} of this engine's context"
        what = f"rows={rows} after context={context} are {context + rows} tokens"
        raise ValueError(f"profile: {what}, expected {expected}")
    found = Profile(rows, passes, context)
    found.whole = _time_passes(engine, found)
    model, ops = engine.model, engine.model.ops
    watch = Watch(ops, model)
    try:
        model.use(watch)
        found.seconds = _time_passes(engine, found, watch.begin)
    finally:
        model.use(ops)
    found.spent = sorted(watch.spent.values(), key=lambda each: -each.seconds)
    found.layers = watch.layers
    return found


def _time_passes(engine: Engine, of: Profile, begin: Callable[[], None] = lambda: None) -> float:
    """Seconds of the passes, all at the same positions of a sequence, after one warm-up pass."""
    cache = engine.new_cache()
    tokens = (
        np.random.default_rng(0).integers(0, engine.model.config.vocabulary, of.context + of.rows).tolist()
    )
    if of.context:
        engine.forward(tokens[: of.context], cache)
    engine.forward(tokens[of.context :], cache)
    begin()
    seconds = 0.0
    for _ in range(of.passes):
        cache.truncate(of.context)
        if cache.length < of.context:  # a recurrent state cannot go back
            engine.forward(tokens[cache.length : of.context], cache)
        start = time.perf_counter()
        engine.forward(tokens[of.context :], cache)
        seconds += time.perf_counter() - start
    return seconds


class Watch:
    """The ops of a backend, each timed. Ops without a known weight count for the layer before."""

    def __init__(self, ops: Any, model: Model):
        self._ops = ops
        self._names = {
            id(weight): (layer.index, name)
            for layer in model.layers
            for name, weight in layer.weights.items()
        }
        last = model.config.layers
        for weight, name in ((model.embedding, "embedding"), (model.output, "output")):
            self._names[id(weight)] = (last, name)
        self._names[id(model.output_norm)] = (last, "output_norm")
        self._count, self._output = last, model.output
        self.begin()

    def begin(self) -> None:
        """Reset all times."""
        self.spent: dict[tuple[str, str, str], Spent] = {}
        self.layers = [0.0] * self._count
        self._layer = self._count

    def extension(self, name: str) -> None:
        """None: ops are timed one by one."""

    def __getattr__(self, name: str) -> Any:
        call, op = getattr(self._ops, name), name.removesuffix("_into")
        if op not in OPS:
            return call

        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **options)
            self._note(op, args, time.perf_counter() - start)
            return result

        setattr(self, name, timed)
        return timed

    def _note(self, op: str, args: tuple[Any, ...], seconds: float) -> None:
        known = next((each for each in args if id(each) in self._names), None)
        what = ""
        if known is not None:
            self._layer, what = self._names[id(known)]
        stored = known if op in _PRODUCTS and known is not None else args[1] if op in _PRODUCTS else None
        read = [stored] if stored is not None else args[1:3] if op == "attention" else []
        if stored is not None and not what:  # a part of a tensor: rows of the output, or one of many experts
            what = "output" if _within(stored, self._output) else "experts"
        key = (op, what, _format(stored))
        spent = self.spent.setdefault(key, Spent(*key))
        spent.calls += 1
        spent.seconds += seconds
        spent.nbytes += sum(each.nbytes for each in read)
        if self._layer < self._count:
            self.layers[self._layer] += seconds


def _within(part: Any, whole: Any) -> bool:
    """Whether a stored tensor is a view into another."""
    first, second = (each if isinstance(each, np.ndarray) else each.data for each in (part, whole))
    return np.may_share_memory(first, second)


def _format(stored: Any) -> str:
    if stored is None:
        return ""
    return str(stored.dtype) if isinstance(stored, np.ndarray) else stored.format


def lines(found: Profile, memory: float) -> list[str]:
    """A profile as a table for a terminal. `memory`: the GB/s at which this machine reads its memory."""
    each = 1e3 / found.passes
    title = f"{'op':<14}{'weights':<24}{'format':<10}{'calls':>7}{'ms':>9}{'share':>8}{'GB/s':>8}"
    report = [f"{title}{'of memory':>11}"]
    for spent in found.spent:
        rate = f"{spent.gb_s:8.1f}{spent.gb_s / memory:>11.0%}" if spent.nbytes else ""
        report.append(
            f"{spent.op:<14}{spent.what:<24}{spent.format:<10}{spent.calls // found.passes:>7}"
            f"{spent.seconds * each:>9.3f}{_share(spent.seconds, found)}{rate}"
        )
    report.append(f"{'between the ops':<55}{found.between * each:>9.3f}{_share(found.between, found)}")
    report.append(f"{'all':<55}{found.seconds * each:>9.3f}{_share(found.seconds, found)}")
    report.append("")
    longest = max(found.layers)
    for i, seconds in enumerate(found.layers):
        bar = "#" * round(30 * seconds / longest)
        report.append(f"layer {i:<8}{seconds * each:>9.3f}{_share(seconds, found)}  {bar}")
    tokens = found.passes * found.rows
    report.append("")
    report.append(f"unwatched: {found.whole * each:.3f} ms a pass, {tokens / found.whole:.1f} tokens/s")
    return report


def _share(seconds: float, found: Profile) -> str:
    return f"{100 * seconds / found.seconds:>6.1f} %"
