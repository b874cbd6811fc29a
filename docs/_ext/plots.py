"""Draws the plots of performance.md from the tables of benchmarks/results, each time the site is built.

A plot has a middle grey for text and no background, so that light and dark pages show it well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1]
RESULTS = DOCS.parent / "benchmarks" / "results"
PLOTS = DOCS / "plots"
ISA = "avx512_bf16"
GREY = "#808080"
WIDTH = 4.6  # inches: small, so that a phone shows letters of a readable size
COLOURS = (
    *("#3d7fc9", "#c9a227", "#4f9d69", "#b5588f", "#8f77c9", "#c96a3d"),
    *("#5aa5b5", "#a0785a", "#d4807f", "#6f8f2f", "#5564a8", "#9aa0a6"),
)
ENGINES = {"airllm": "airllm", "llama_cpp": "llama.cpp", "ik_llama_cpp": "ik_llama.cpp"}
STYLE = {
    "svg.hashsalt": "airllm",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), GREY),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def table(name: str) -> dict[str, Any]:
    """The newest figures of a benchmark with ISA."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}_*_{ISA}.json"))]
    newest: dict[str, Any] = max(found, key=lambda each: each["date"])
    return newest


def cpu_of(name: str) -> str:
    """The CPU of the figures that `table` has."""
    return str(table(name)["machine"]["cpu"])


def ops(figure: Figure) -> None:
    """Each op's speed beside PyTorch's by size: the second of the passes."""
    axes = figure.subplots()
    rows = [row for row in table("ops")["passes"][1] if row["op"] in ("rms_norm", "silu", "gelu", "softmax")]
    for colour, op in zip(COLOURS, dict.fromkeys(row["op"] for row in rows), strict=False):
        of_op = [row for row in rows if row["op"] == op]
        sizes = [row["rows"] * row["cols"] for row in of_op]
        ratios = [row["torch"]["median"] / row["tensor_ops"]["median"] for row in of_op]
        axes.plot(sizes, ratios, color=colour, marker="o", markersize=3, label=op)
    axes.set_xscale("log")
    axes.set_xlabel("elements")
    ratio_axis(axes, "ops")


def products(figure: Figure) -> None:
    """Products with stored weights beside the faster of ggml's kernels, by rows of x."""
    axes = figure.subplots()
    counts = [1, 2, 8, 16, 512]
    rows = [row for row in table("products")["passes"][1] if (row["k"], row["n"]) == (4096, 14336)]
    for colour, row in zip(COLOURS, rows, strict=False):
        ratios = [
            min(row[f"{n} {peer}"]["median"] for peer in ("ggml", "repacked") if f"{n} {peer}" in row)
            / row[str(n)]["median"]
            for n in counts
        ]
        axes.plot(range(len(counts)), ratios, color=colour, marker="o", markersize=3, label=row["format"])
    axes.set_xticks(range(len(counts)), list(map(str, counts)))
    axes.set_xlabel("rows of x")
    ratio_axis(axes, "products")


def attention(figure: Figure) -> None:
    """Attention beside PyTorch's faster form, 32 heads over 8 of 128."""
    axes = figure.subplots()
    rows = [row for row in table("attention")["passes"][1] if row["model"] == "32:8:128"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for i, (colour, dtype) in enumerate(zip(COLOURS, dtypes, strict=False)):
        of_dtype = {row["case"]: row for row in rows if row["dtype"] == dtype}
        ratios = [
            min(of_dtype[case][peer]["median"] for peer in ("gqa", "repeated"))
            / of_dtype[case]["tensor_ops"]["median"]
            for case in cases
        ]
        group(axes, i, len(dtypes), ratios, colour, dtype)
    names = ["a prompt of 512" if case == "prefill" else f"a token after {case}" for case in cases]
    axes.set_xticks(range(len(cases)), names)
    ratio_axis(axes, "attention")


def models(figure: Figure) -> None:
    """Tokens per second of models of real shapes, one panel for a model."""
    cases = table("models")["cases"]
    names = list(dict.fromkeys(case["model"].rpartition(",")[0] for case in cases))
    for axes, name in zip(figure.subplots(len(names), 1), names, strict=True):
        of_model = [case for case in cases if case["model"].startswith(name)]
        for i, (key, label) in enumerate(ENGINES.items()):
            heights = [median(turn["decode"][key] for turn in case["rounds"]) for case in of_model]
            group(axes, i, len(ENGINES), heights, COLOURS[(0, 1, -1)[i]], label)
        axes.set_xticks(range(len(of_model)), [case["model"].rpartition(", ")[2] for case in of_model])
        axes.set_title(f"{name}: tokens/s, {cpu_of('models')}", fontsize=10, loc="left")
        bare(axes)


def server(figure: Figure) -> None:
    """Tokens per second of the server with 1 and 8 clients."""
    models = table("serve")["models"]
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        rounds = model["rounds"]
        for i, name in enumerate(rounds):
            heights = [median(turn[clients] for turn in rounds[name]) for clients in ("one", "eight")]
            group(axes, i, len(rounds), heights, COLOURS[i], name)
        axes.set_xticks(range(2), ["1 client", "8 clients"])
        axes.set_title(f"{model['model']}: tokens/s, {cpu_of('serve')}", fontsize=10, loc="left")
        bare(axes)


def group(axes: Any, i: int, count: int, heights: list[float], colour: str, label: str) -> None:
    """Bars, the i-th of each group of `count`, with their heights above them."""
    width = 0.84 / count
    places = [place + (i - (count - 1) / 2) * width for place in range(len(heights))]
    bars = axes.bar(places, heights, width=width * 0.94, color=colour, label=label)
    axes.bar_label(bars, fmt="%.3g", fontsize=9, padding=2, color=GREY)


def ratio_axis(axes: Any, name: str) -> None:
    """A logarithmic axis of a benchmark's ratios, with a line where both are equal."""
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.axhline(1, color=GREY, linewidth=1)
    axes.margins(y=0.1)
    axes.set_title(f"times as fast, {cpu_of(name)}", fontsize=10, loc="left")
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def bare(axes: Any) -> None:
    """No scale: the bars have labels."""
    axes.margins(y=0.16)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


# The name of a file, what draws it, and its height in inches.
DRAWN: dict[str, tuple[Callable[[Figure], None], float]] = {
    "ops": (ops, 3.2),
    "attention": (attention, 3.0),
    "products": (products, 3.6),
    "models": (models, 4.2),
    "server": (server, 2.6),
}


def draw(folder: Path) -> None:
    """Write all plots, as SVG, to the folder."""
    folder.mkdir(exist_ok=True)
    for name, (drawing, height) in DRAWN.items():
        with rc_context(STYLE):
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            drawing(figure)
            handles = figure.axes[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower left", ncols=4, fontsize=9)
            figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})


def _draw_for_site(app: Any) -> None:
    draw(PLOTS)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", _draw_for_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
