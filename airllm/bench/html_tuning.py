"""The results of `airllm tune` as an HTML page: time against size, and the backend of each call."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from airllm.backends.routing import us
from airllm.bench.html_frame import frame_page, table
from airllm.bench.plots import MARKERS, by_size, colours_of, panels

Choice = dict[str, Any]
Row = dict[str, Any]


def write(choice: Choice, path: Path) -> None:
    """Write a page of `choice`: "file", "measured", "machine", and "rows" from `routing.Table.rows`."""
    machine = choice["machine"]
    about = f"{machine['cpu']}, {machine['cores']} cores, airllm {machine['airllm']}. {choice['measured']}"
    devices = [[escape(name), escape(device)] for name, device in machine["backends"].items()]
    body = [
        "<h1>Where each backend wins</h1>",
        f'<p class="soft">{escape(about)}</p>',
        table(["Backend", "Device"], devices, ("first", "told")),
        *section(choice),
    ]
    footer = f"Made by <code>airllm tune</code> from <code>{escape(choice['file'])}</code>."
    path.write_text(frame_page("airllm: where each backend wins", "\n".join(body), footer), encoding="utf-8")


def section(choice: Choice) -> Iterator[str]:
    """The plots and tables as parts of a page."""
    rows = choice["rows"]
    colours = colours_of(list(dict.fromkeys(name for row in rows for name in row["us"])))
    yield "<h2>Choice by size</h2>"
    yield (
        "<p>Median time of a call on NumPy arrays, copies to a device and back included. Filled points are "
        "what <code>auto</code> takes: the first backend of the order, unless another one is faster by a "
        "tenth and by more than both vary. A call takes what holds at the nearest measured size."
        f"{_only(rows)}</p>"
    )
    keys = "".join(f'<span><i style="color:{colour}"></i>{escape(n)}</span>' for n, colour in colours.items())
    yield f'<div class="legend">{keys}</div>'
    for op, found in groupby(rows, key=lambda row: row["op"]):
        yield from _op(op, list(found), colours)


def _only(rows: list[Row]) -> str:
    """A note if only one dtype was measured, else "": without it, a reader could think there is no other."""
    dtypes = {row["dtype"] for row in rows}
    found = next(iter(dtypes), "")
    return f" Measured in {found} alone, as --quick does: others take the first of the order." * (
        len(dtypes) == 1
    )


def _op(op: str, rows: list[Row], colours: dict[str, str]) -> Iterator[str]:
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))

    def draw(axes: Any, dtype: str) -> None:
        _panel(axes, [row for row in rows if row["dtype"] == dtype], colours)

    yield f"<h3>{escape(op)}</h3>"
    yield f"<figure>{panels(op, dtypes, 'microseconds', draw)}</figure>"
    for dtype in dtypes:
        times = _times([row for row in rows if row["dtype"] == dtype], list(colours))
        yield f"<details><summary>{escape(op)} in {escape(dtype)}</summary>{times}</details>"


def _panel(axes: Any, rows: list[Row], colours: dict[str, str]) -> None:
    for (name, colour), marker in zip(colours.items(), MARKERS * len(colours), strict=False):
        found = [(i, row["us"][name][0]) for i, row in enumerate(rows) if name in row["us"]]
        taken = [(i, time) for i, time in found if rows[i]["winner"] == name]
        if found:
            axes.plot(*zip(*found, strict=True), color=colour, linewidth=1.6, alpha=0.75)
            axes.scatter(*zip(*found, strict=True), s=22, marker=marker, color="none", edgecolor=colour)
        if taken:
            axes.scatter(*zip(*taken, strict=True), s=44, marker=marker, color=colour, zorder=3)
    by_size(axes, [_sizes(row) for row in rows])


def _sizes(row: Row) -> str:
    """The shapes of a row; equal shapes appear once."""
    return ", ".join(dict.fromkeys("×".join(map(str, shape)) for shape in row["shapes"]))


def _times(rows: list[Row], names: list[str]) -> str:
    lines = []
    for row in rows:
        size = ", ".join(" × ".join(map(str, shape)) for shape in row["shapes"])
        lines.append([escape(size), *(_time(row, name) for name in names)])
    return table([rows[0]["dtype"], *names], lines, ("first", "n"))


def _time(row: Row, name: str) -> str:
    if name not in row["us"]:
        return '<span class="soft">too slow to be measured</span>'
    median, low, high = row["us"][name]
    best = " class=best" if row["winner"] == name else ""
    return f'<span{best} title="{us(low)} to {us(high)}">{us(median)}</span>'
