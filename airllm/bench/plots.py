"""Plots of speed or time against size, as inline SVG. The first plot imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airllm.backends.declaration import all_declarations

if TYPE_CHECKING:
    from airllm.bench.report import Row

COLOURS = {"torch": "#e8743b"} | {name: own.colour for name, own in all_declarations().items() if own.colour}
OTHER_COLOURS = ("#4aa8c4", "#7a9a2e", "#a0522d")  # for backends that declare none
MARKERS = "osD^vP*X"
PANEL = (4.5, 3.2)  # inches: the width of a phone, or a third of a page
TEXT = 12  # points: about as many pixels in a panel of that width
UPRIGHT = 26  # characters of the size labels, with spaces, that fit next to each other
SLANTED = 0.05  # inches of height per character of a slanted label
INK = "#010203"  # placeholder for the page's text colour, replaced in the SVG


def colours_of(names: list[str]) -> dict[str, str]:
    """A colour for each implementation, the same in all plots."""
    others = iter(OTHER_COLOURS * len(names))
    return {name: COLOURS.get(name) or next(others) for name in names}


def plot(rows: list[Row], colours: dict[str, str], copy: float) -> str:
    """GB/s (GFLOP/s for products) against size, one panel per dtype, as an SVG element."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    unit = "gflop_s" if any("gflop_s" in row for row in rows) else "gb_s"

    def draw(axes: Any, dtype: str) -> None:
        _panel(axes, [row for row in rows if row["dtype"] == dtype], unit, colours, copy)

    return panels(rows[0]["op"], dtypes, "GFLOP/s" if unit == "gflop_s" else "GB/s", draw)


def panels(name: str, titles: list[str], label: str, draw: Callable[[Any, str], None]) -> str:
    """One SVG element per title, with a common y axis. A page shows them in a row, or stacked if it is
    narrow. `draw(axes, title)` draws each; `label` is that of the y axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "font.size": TEXT, "axes.edgecolor": INK}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with rc_context(style):
        figures = {title: Figure(figsize=PANEL, layout="constrained") for title in titles}
        for title, figure in figures.items():
            axes = figure.subplots()
            draw(axes, title)
            axes.set_title(title, fontsize=TEXT, loc="left")
            axes.set_ylabel(label)
        _same_height([figure.axes[0] for figure in figures.values()])
        drawn = []
        for title, figure in figures.items():
            with rc_context({"svg.hashsalt": f"{name} {title}"}):
                drawn.append(_svg(figure))
        return "".join(drawn)


def _same_height(panels: list[Any]) -> None:
    """Give all panels one logarithmic y axis, from the lowest to the highest value."""
    from matplotlib.ticker import LogLocator

    low, high = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(low), max(high))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(high) < 60 * min(low) else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()


def _panel(axes: Any, rows: list[Row], unit: str, colours: dict[str, str], copy: float) -> None:
    sizes = list(dict.fromkeys((row["rows"], row["cols"]) for row in rows))
    for (name, colour), marker in zip(colours.items(), MARKERS * len(colours), strict=False):
        mine = {(row["rows"], row["cols"]): row.get(unit) for row in rows if row["implementation"] == name}
        found = [(sizes.index(size), rate) for size, rate in mine.items() if rate]
        if found:
            axes.plot(*zip(*found, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.8)
    if unit == "gb_s":
        axes.axhline(copy, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6, zorder=0)
    by_size(axes, [f"{rows}×{cols}" for rows, cols in sizes])


def by_size(axes: Any, sizes: list[str]) -> None:
    """Set the x axis to the sizes in order, and the y axis to logarithmic."""
    axes.set_yscale("log")
    axes.set_xticks(range(len(sizes)), sizes)
    if len("  ".join(sizes)) > UPRIGHT:
        axes.tick_params(axis="x", rotation=35)
        axes.figure.set_figheight(PANEL[1] + SLANTED * max(map(len, sizes)))
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.3, len(sizes) - 0.7)
    axes.grid(axis="y", color=INK, alpha=0.1)
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_alpha(0.3)


def _svg(figure: Any) -> str:
    """The figure as an SVG element that takes its text colour from the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
