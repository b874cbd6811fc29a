"""Which layers of a model stay on a device with little memory, and how the others are computed.

They are split off: the first layers run in host memory, with their keys and values. Or they are streamed:
their matrices pass through two staging places on the device in each pass, while keys, values and vectors of
all layers stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from airllm.formats import Quantized
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.cache_layout import CacheLayout, device_room
from airllm.memory.layers import Layer
from airllm.readable import size

WHOLE, SPLIT, STREAM = "whole", "split", "stream"  # the forms of a plan
OFFLOADS = ("auto", SPLIT, STREAM)
_SLACK = 1 << 18  # bytes: angles, ids, small results of ops that are put off
_MARGIN_PART = 16  # of what is free, a part is left to the driver and to other programs


@dataclass(frozen=True)
class DeviceOptions:
    """What a user says of a device: `memory`, the bytes that a model may take there, None for what is free;
    `layers`, how many stay there, None for as many as fit; `offload`, the form. With `layers`, "auto" is the
    form "split".
    """

    memory: int | None = None
    layers: int | None = None
    offload: str = "auto"

    def __post_init__(self) -> None:
        if self.offload not in OFFLOADS:
            raise ValueError(f"offload has value {self.offload!r}, expected one of {', '.join(OFFLOADS)}")
        whole = isinstance(self.layers, int) and not isinstance(self.layers, bool) and self.layers >= 0
        if self.layers is not None and not whole:
            expected = "expected a number of layers, 0 or more"
            raise ValueError(f"gpu_layers has value {self.layers!r}, {expected}")

    @property
    def given(self) -> bool:
        """Whether the user said anything."""
        return self != DeviceOptions()

    def refuse(self, why: str) -> None:
        """ValueError that says why a model is on no device, if the user said anything."""
        named: dict[str, int | str | None] = {"device_memory": self.memory, "gpu_layers": self.layers}
        if self.offload != "auto":
            named["offload"] = self.offload
        for name, value in named.items():
            if value is not None:
                raise ValueError(f"{name} has value {value!r}, expected None: {why}")


@dataclass(frozen=True)
class DevicePlan:
    """Layers from `first` on are on the device; of those, the matrices of `streamed` pass through it.

    `embeds`: the embedding is there too. `nbytes`: what all of it needs, with `caches` bytes for keys and
    values, at most `limit`; None for no limit. `why`: the reason for the form.
    """

    form: str
    layers: int
    first: int = 0
    streamed: tuple[int, ...] = ()
    embeds: bool = True
    nbytes: int = 0
    caches: int = 0
    limit: int | None = None
    why: str = ""

    @property
    def stays(self) -> int:
        """How many layers stay on the device."""
        return self.layers - self.first - len(self.streamed)

    def __str__(self) -> str:
        if self.form == WHOLE:
            return "they stay on the device"
        rest = f"{self.first} run" if self.form == SPLIT else f"{len(self.streamed)} are streamed"
        place = "in host memory" if self.form == SPLIT else "through it in each pass"
        return f"{self.stays} of {self.layers} layers stay on the device, {rest} {place}"


@dataclass(frozen=True)
class DeviceSizes:
    """Bytes on a device: of each layer's `matrices`, `vectors`, and keys, values and states in `caches`; of
    what each plan has, `ends`, the output and the results of a pass; of the `embedding`, if it is not the
    output. `places` gives the bytes of two staging places for some layers, `why_not_streamed` the reason if
    none can be. `sources`: the layer whose keys and values each layer reads; none for its own.
    """

    matrices: list[int]
    vectors: list[int]
    caches: list[int]
    ends: int
    embedding: int
    places: Callable[[Sequence[int]], int]
    why_not_streamed: str = ""
    sources: Sequence[int] = ()

    @property
    def splits(self) -> list[int]:
        """The layers that can be the first on the device: none there reads keys and values in host memory."""
        sources = self.sources or range(len(self.matrices))
        return [i for i in range(1, len(self.matrices)) if min(sources[i:]) >= i]

    def whole(self, embeds: bool = True) -> int:
        """Bytes of a model that is all there."""
        return self.split(0) + embeds * self.embedding

    def split(self, first: int) -> int:
        """Bytes if the layers from `first` on are there."""
        parts = (self.matrices, self.vectors, self.caches)
        return self.ends + sum(sum(part[first:]) for part in parts) + self._grown(first)

    def stream(self, streamed: Sequence[int]) -> int:
        """Bytes if the matrices of these layers pass through the device."""
        gone = sum(self.matrices[layer] for layer in streamed)
        return self.split(0) - gone + (self.places(streamed) if streamed else 0)

    def _grown(self, first: int) -> int:
        """The array of keys and values that is copied to a larger one."""
        return max(self.caches[first:], default=0)


def plan_device(sizes: DeviceSizes, options: DeviceOptions, free: int | None) -> list[DevicePlan]:
    """The plans that fit, one of each form that is possible; a plan for all layers is the only one.

    `free`: the bytes that are free on the device, None if unknown. Raises MemoryBudgetError that says what
    would fit, if nothing does.
    """
    count = len(sizes.matrices)
    limit = options.memory
    if limit is None and free is not None:
        limit = free - free // _MARGIN_PART
    most = limit if limit is not None else sizes.whole()
    if options.layers is not None and options.layers < count:
        return [_asked(sizes, options, most, limit)]
    for embeds in (True, False):
        if (nbytes := sizes.whole(embeds)) <= most:
            caches = sum(sizes.caches)
            return [DevicePlan(WHOLE, count, 0, (), embeds, nbytes, caches, limit)]
    if options.layers is not None:
        return [_asked(sizes, options, most, limit)]
    plans = _largest(sizes, most, limit)
    wanted = [plan for plan in plans if options.offload in ("auto", plan.form)]
    if not wanted:
        raise MemoryBudgetError(_too_little(sizes, options, limit, most))
    return wanted


def _asked(sizes: DeviceSizes, options: DeviceOptions, most: int, limit: int | None) -> DevicePlan:
    """The plan with as many layers on the device as a user asks for."""
    count = len(sizes.matrices)
    stays, make = min(options.layers or 0, count), _stream if options.offload == STREAM else _split
    if options.offload == STREAM and sizes.why_not_streamed:
        raise ValueError(f"offload has value 'stream', expected 'split': {sizes.why_not_streamed}")
    plan = make(sizes, stays, limit)
    if plan.form == SPLIT and stays > 0 and plan.first not in sizes.splits:
        can = ", ".join(str(count - first) for first in (count, *reversed(sizes.splits), 0))
        other = "" if sizes.why_not_streamed else ", or offload='stream'"
        why = "layers there would read keys and values of others in host memory"
        raise ValueError(f"gpu_layers has value {stays}, expected one of {can}{other}: {why}")
    if plan.nbytes > most:
        fits = next((n for n in range(stays, -1, -1) if make(sizes, n, limit).nbytes <= most), 0)
        what = f"gpu_layers has value {options.layers}, expected at most {fits}"
        rest = f"which fit into {most} bytes of the device; these need {plan.nbytes} bytes there"
        raise MemoryBudgetError(f"{what}, {rest}")
    return replace(plan, why="as gpu_layers says")


def _split(sizes: DeviceSizes, stays: int, limit: int | None) -> DevicePlan:
    """The plan with so many layers there, the last ones."""
    count = len(sizes.matrices)
    first, form = count - stays, SPLIT if stays < count else WHOLE
    return DevicePlan(form, count, first, (), False, sizes.split(first), sum(sizes.caches[first:]), limit)


def _stream(sizes: DeviceSizes, stays: int, limit: int | None) -> DevicePlan:
    """The plan with so many layers that stay there."""
    count = len(sizes.matrices)
    streamed = spread(count, count - stays)
    nbytes, form = sizes.stream(streamed), STREAM if streamed else WHOLE
    return DevicePlan(form, count, 0, streamed, False, nbytes, sum(sizes.caches), limit)


def _largest(sizes: DeviceSizes, most: int, limit: int | None) -> list[DevicePlan]:
    """Of each form, the plan with the most layers that stay, if one fits; a split keeps one at least."""
    count = len(sizes.matrices)
    forms = [[_split(sizes, count - first, limit) for first in sizes.splits]]
    if not sizes.why_not_streamed:
        forms.append([_stream(sizes, stays, limit) for stays in range(count - 1, -1, -1)])
    return [plan for plans in forms for plan in [each for each in plans if each.nbytes <= most][:1]]


def spread(count: int, some: int) -> tuple[int, ...]:
    """So many of `count` layers, evenly: those between are computed while the next is uploaded."""
    return tuple(i * count // some for i in range(some))


def _too_little(sizes: DeviceSizes, options: DeviceOptions, limit: int | None, most: int) -> str:
    count = len(sizes.matrices)
    least = {SPLIT: sizes.split(max(sizes.splits))} if sizes.splits else {}
    if not sizes.why_not_streamed:
        least[STREAM] = sizes.stream(range(count))
    if options.offload in least:
        least = {options.offload: least[options.offload]}
    found = f"device_memory is {most} bytes" if options.memory else f"{most} bytes of the device are free"
    if not least:
        return f"{found}, expected {sizes.whole()}: this model can neither be split nor streamed"
    if options.offload == STREAM and sizes.why_not_streamed:
        return f"offload has value 'stream', expected 'split': {sizes.why_not_streamed}"
    expected = f"expected at least {min(least.values())}"
    return f"{found}, {expected}: a layer, the output, keys and values of the context, and a pass's results"


def measure_sizes(
    layers: Sequence[Layer],
    ends: int,
    embedding: int,
    layout: CacheLayout,
    places: Callable[[Sequence[int]], int],
    why_not_streamed: str,
) -> DeviceSizes:
    """The sizes of a model's layers. `ends`: bytes of output and results; `layout`: that of a sequence's
    cache; `places`: see `DeviceSizes`.
    """
    caches = dict.fromkeys(range(len(layers)), 0)
    for part, shapes, room in zip(layout.parts, layout.shapes, layout.rooms, strict=True):
        of_token = sum(prod(shape[1:3]) * shape[4] * layout.items.itemsize for shape in shapes)
        each = of_token * device_room(room)
        caches |= dict.fromkeys(part.layers, each)
    for layer, each in layout.layer_state_bytes.items():
        caches[layer] += each
    return DeviceSizes(
        [_nbytes(layer, matrices=True) for layer in layers],
        [_nbytes(layer, matrices=False) for layer in layers],
        list(caches.values()),
        ends + _SLACK,
        embedding,
        places,
        why_not_streamed,
        layers[0].config.kv_layers,
    )


def _nbytes(layer: Layer, matrices: bool) -> int:
    own = sum(each.nbytes for each in layer.weights.values() if is_matrix(each) == matrices)
    if not layer.experts or not matrices:
        return own
    experts = map(layer.experts.look_up, range(layer.config.experts))
    return own + sum(each.nbytes for weights in experts for each in weights.values())


def is_matrix(stored: object) -> bool:
    """Whether a weight is a matrix, not a vector."""
    return isinstance(stored, Quantized) or len(getattr(stored, "shape", ())) > 1


def in_short(plan: DevicePlan) -> str:
    """A plan with its bytes and its reason, in one line."""
    room = f", in {size(plan.nbytes)} of {size(plan.limit)}" if plan.limit is not None else ""
    return f"{plan}{room}{': ' if plan.why else ''}{plan.why}"
