"""Results of a run as tables for a terminal and as JSON; `airllm.bench.html_report` makes the HTML page.

The speed of a model comes first, then the ops. A single figure for many cases is in float32.

All three are made from the same dict (see `op_benchmark` and `detect_and_benchmark.py`), so a page can be
made again from its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from airllm.backends.config_schema import DEFINITIONS, processor_module
from airllm.engine.speed import rate
from airllm.readable import size

Result = dict[str, Any]
Row = dict[str, Any]

LABELS = {DEFINITIONS: "NumPy", "torch": "PyTorch"}
RATIOS = {"vs_numpy": "x NumPy", "vs_torch": "x PyTorch"}
FEW = 3  # rounds: a figure from fewer is marked
NOISY = 0.5  # spread (interquartile range / median): a figure with more is marked
FAR = 0.5  # best time / median: a figure with less is marked too
MANY = 0.1  # share of marked times: if there are more, all times are doubted
FOR_ALL = "float32"  # the dtype of a figure that summarizes many
PLAIN_WIDTH = 120  # width of a table in a file or a pipe
STATES = {
    "active": "green",
    "available": "green",
    "passed over": "yellow",
    "unavailable": "dim",
    "wrong": "red",
}
BUILD_STATES = {
    "built": "green",
    "up to date": "green",
    "checked": "green",
    "skipped": "yellow",
    "unavailable": "yellow",
    "failed": "red",
}


# ------------------------------------------------------------------------------------------------ numbers


def label(implementation: str) -> str:
    return LABELS.get(implementation, implementation)


def duration(seconds: float) -> str:
    """A time with three digits and a suitable unit: "56.3 us"."""
    for unit, one in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= one:
            return f"{figures(seconds / one)} {unit}"
    return f"{figures(seconds / 1e-9)} ns"


def figures(value: float) -> str:
    """A number with about three digits, never with an exponent."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 4}f}"


def share(gb_s: float, result: Result) -> str:
    return f"{100 * gb_s / result['bandwidth']['copy']:.0f} %"


def cases(rows: Iterable[Row]) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Each timed (op, dtype, size), with its row for each implementation."""
    for _, group in groupby(rows, key=lambda row: (row["op"], row["dtype"], row["rows"], row["cols"])):
        found = {row["implementation"]: row for row in group}
        yield next(iter(found.values())), found


def fastest(found: dict[str, Row]) -> Row | None:
    """The row of the fastest backend; PyTorch is not a backend."""
    ours = [row for name, row in found.items() if name != "torch" and "median" in row]
    return min(ours, key=lambda row: row["median"], default=None)


def implementations(rows: Iterable[Row]) -> list[str]:
    """The backends in the order in which they were timed, then the baselines."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    return sorted(names, key=lambda name: list(LABELS).index(name) if name in LABELS else -1)


def ratios(result: Result, backend: str, peer: str) -> list[float]:
    """The speed of a backend relative to a peer, in each case of FOR_ALL."""
    key = f"vs_{peer}"
    mine = (row for row in result["speed"] if row["implementation"] == backend and row["dtype"] == FOR_ALL)
    return [row[key] for row in mine if key in row]


def by_state(result: Result) -> list[Row]:
    """The backends, most useful states first."""
    order = ("active", "available", "wrong", "passed over", "unavailable")
    return sorted(result["backends"], key=lambda each: order.index(each["state"]))


def active(result: Result) -> str:
    """The backend that runs ops by default, "" if it was not selected."""
    return next((each["name"] for each in result["backends"] if each["state"] == "active"), "")


def spread(figure: Row) -> str:
    """The interquartile range around a median, as text."""
    return f"±{50 * (figure['high'] - figure['low']) / figure['median']:.0f} %"


def headline(result: Result) -> list[tuple[str, str]]:
    """The most important figures of the run, in order, with their descriptions."""
    found = []
    model = result.get("model") or {}
    rows = [row for row in model.get("rows", ()) if "answer" in row]
    if rows:
        row = rows[0]
        found += [
            (
                f"{rate(row['answer']['median'])} tokens/s",
                f"an answer of {model['name']} on {row['backend']}",
            ),
            (f"{rate(row['prompt']['median'])} tokens/s", f"a prompt of {row['prompt_tokens']} tokens"),
            (duration(row["first_token"]["median"]), "to the first token, from the start of the program"),
        ]
        if "memory" in row:
            found.append((size(round(row["memory"]["median"])), "of memory at most"))
    name = active(result)
    for peer, implementation in (("numpy", DEFINITIONS), ("torch", "torch")):
        if name != implementation and (each := ratios(result, name, peer)):
            low, median, high = (f"{figures(value)}×" for value in np.percentile(each, (25, 50, 75)))
            text = f"the speed of {LABELS[implementation]}: ops on {name} in {FOR_ALL}"
            found.append((median, f"{text}, the median of {len(each)} (half of them: {low} to {high})"))
    return found


def doubts(result: Result) -> list[str]:
    """Why the figures may not represent this machine when idle, one sentence each."""
    found = [result["others"]["busy"]] if result.get("others", {}).get("busy") else []
    timed = [row for row in result["speed"] if "median" in row]
    if (noisy := sum(map(is_noisy, timed))) > MANY * len(timed):
        found.append(f"{noisy} of {len(timed)} times of ops vary much (marked ~)")
    return found


def failures(result: Result) -> list[str]:
    """The failures, one line each; a run with any ends with a non-zero exit status."""
    found = [
        f"build: {each['name']}: {each['detail']}" for each in result["builds"] if each["state"] == "failed"
    ]
    found += [f"backend: {b['name']}: {b['reason']}" for b in result["backends"] if b["state"] == "wrong"]
    for test in result["tests"]:
        if not test["passed"]:
            what = test["message"] or f"error is {figures(test['error'])} times what is allowed"
            case = f"{test['op']} {test['rows']}x{test['cols']} {test['dtype']}"
            found.append(f"check: {test['backend']}: {case}: {what}")
    return found


# ------------------------------------------------------------------------------------------------ terminal


def console(**options: Any) -> Console:
    """A console; if the output is not a terminal, tables keep their width and have no control codes."""
    found = Console(highlight=False, **options)
    if not found.is_terminal:
        found = Console(highlight=False, width=PLAIN_WIDTH, no_color=True, **options)
    return found


def with_title(title: str, table: Table) -> Group:
    return Group(Text(title, style="bold"), table)


def table_of(*titles: str) -> Table:
    return Table(*titles, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def machine_table(result: Result) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in machine_lines(result):
        table.add_row(Text(name, style="dim"), Text(value))
    return with_title("Machine", table)


def machine_lines(result: Result) -> Iterator[tuple[str, str]]:
    machine, bandwidth, data = result["machine"], result["bandwidth"], result["data"]
    yield (
        "CPU",
        f"{machine['cpu']} ({machine['isa']}, {machine['cores']} cores, cache {machine['last_cache_mb']} MB)",
    )
    yield (
        "Memory",
        f"{machine['memory_gb']} GB; copy {bandwidth['copy']:.1f} GB/s, read {bandwidth['read']:.1f} GB/s",
    )
    yield "Measured by", bandwidth["how"]
    yield "Threads", _threads(result["threads"])
    yield "System", machine["system"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield "Versions", f"Python {machine['python']}, {versions}"
    if machine["compiler"]:
        yield "Compiler", machine["compiler"]
    yield "Input", data["source"]
    if data["why_not"]:
        yield "Not real, because", data["why_not"]


def _threads(counts: dict[str, int]) -> str:
    texts = [f"{name} {count}" for name, count in counts.items()]
    if not set(counts) - {"torch", processor_module()}:
        texts.append("NumPy's BLAS as it chooses (threadpoolctl, which sets it, is not installed)")
    return ", ".join(texts)


def builds_table(result: Result) -> RenderableType:
    table = table_of("Build", "State", "Detail")
    for build in result["builds"]:
        table.add_row(build["name"], _colour(build["state"], BUILD_STATES), Text(build["detail"]))
    return with_title("Builds", table)


def backends_table(result: Result) -> RenderableType:
    table = table_of("Backend", "State", "Device, or why it does not run")
    for backend in by_state(result):
        text = "\n".join(filter(None, (backend["device"], backend["reason"])))
        table.add_row(backend["name"], _colour(backend["state"], STATES), Text(text))
    return with_title("Backends", table)


def model_table(result: Result) -> RenderableType:
    model = result["model"]
    if not model["rows"]:
        return Text(f"No model was timed: {model['why_not']}")
    table = table_of("Backend", "Answer", "Prompt", "First token", "Memory", f"Rounds (*: fewer than {FEW})")
    for row in model["rows"]:
        table.add_row(row["backend"], *model_cells(row))
    return with_title(model_title(model), table)


def model_title(model: Row) -> str:
    """The title of the model's table."""
    return f"{model['name']}: tokens a second, the median and the middle half of the rounds around it"


def model_cells(row: Row) -> list[str]:
    """A backend's figures for the model; if it was not measured, the first cell says why."""
    if "answer" not in row:
        return [row["why_not"], "", "", "", ""]
    few = "*" if row["rounds"] < FEW else ""
    varies = {key: f" {spread(row[key])}" * (row["rounds"] > 1) for key in ("answer", "prompt")}
    rates = [
        f"{few}{rate(row[key]['median'])}{varies[key]} ({row[count]} tokens)"
        for key, count in (("answer", "new_tokens"), ("prompt", "prompt_tokens"))
    ]
    memory = size(round(row["memory"]["median"])) if "memory" in row else ""
    return [*rates, duration(row["first_token"]["median"]), memory, str(row["rounds"])]


def _colour(state: str, colours: dict[str, str]) -> Text:
    return Text(state, style=colours.get(state, ""))


def tests_table(result: Result) -> RenderableType:
    """For each op and backend: the number of passed checks, the largest error as a share of the tolerance,
    and whether the NumPy definition replaces a kernel.
    """
    names = list(dict.fromkeys(test["backend"] for test in result["tests"]))
    table = table_of("Op", *names)
    for op in dict.fromkeys(test["op"] for test in result["tests"]):
        table.add_row(
            op, *(_verdict(summary(result, op, name), stands_in(result, op, name)) for name in names)
        )
    title = "Checks against float64: passed/made, the largest error as a share of the allowed, and NumPy "
    title += "where it stands in for a kernel"
    return with_title(f"{title}. {left}" if (left := omitted_note(result)) else title, table)


def omitted_note(result: Result) -> str:
    """A note that the time was too short for all checks, else ""."""
    count = result.get("checks_left_out")
    return f"Not made, as the time for checks was up: {count}, of larger sizes." if count else ""


def summary(result: Result, op: str, backend: str) -> tuple[int, int, float]:
    """The number of passed checks, of all checks, and the largest error of an op on a backend."""
    found = [test for test in result["tests"] if (test["op"], test["backend"]) == (op, backend)]
    return (
        sum(test["passed"] for test in found),
        len(found),
        max((test["error"] or 0 for test in found), default=0),
    )


def stands_in(result: Result, op: str, backend: str) -> bool:
    """Whether a backend other than NumPy has no kernel and runs the definition."""
    how = {t["how"] for t in result["tests"] if (t["op"], t["backend"]) == (op, backend)}
    return backend != DEFINITIONS and how == {"NumPy"}


def _verdict(counts: tuple[int, int, float], numpy: bool) -> Text:
    passed, checks, error = counts
    text = Text(f"{passed}/{checks}  {error:.2f}", style="green" if passed == checks else "bold red")
    return text + Text("  NumPy", style="dim") if numpy else text


def rounds(result: Result) -> str:
    """The number of rounds of the timings, as a sentence."""
    found = [row["rounds"] for row in result["speed"] if "rounds" in row]
    if not found:
        return ""
    low, high = min(found), max(found)
    few = f" (*: fewer than {FEW}, since the time was up or a call takes long)" if low < FEW else ""
    noisy = (
        f" ~: the middle half of its calls is spread over more than {NOISY:.0%} of it, or its best call took "
    )
    noisy += f"less than {FAR:.0%} of it."
    several = f"the median of {high if low == high else f'{low} to {high}'} rounds"
    text = f"Each time is {several if high > 1 else 'of one round'}{few}."
    return text + (noisy if any(map(is_noisy, result["speed"])) else "")


def is_noisy(row: Row) -> bool:
    """Whether a time varies so much that its median means little, or its best sample was far faster."""
    if "median" not in row:
        return False
    return (
        row["high"] - row["low"] > NOISY * row["median"]
        or row.get("best", row["median"]) < FAR * row["median"]
    )


def mark(row: Row) -> str:
    """The mark before a time from few rounds or with a large spread."""
    return ("*" if row.get("rounds", FEW) < FEW else "") + ("~" if is_noisy(row) else "")


def speed_tables(result: Result) -> Iterator[RenderableType]:
    """A table for each op and dtype: times of all implementations, and the rates of the fastest backend."""
    for (op, dtype), rows in groupby(result["speed"], key=lambda row: (row["op"], row["dtype"])):
        yield with_title(f"\n{op}, {dtype}", _speed_table(list(rows), result))


def _speed_table(rows: list[Row], result: Result) -> Table:
    names, product = implementations(rows), any("gflop_s" in row for row in rows)
    table = table_of("Size")
    peers = {key: title for key, title in RATIOS.items() if any(key in row for row in rows)}
    rates = [*(["GFLOP/s"] if product else []), "GB/s", "copy", *peers.values()]
    for name in [*map(label, names), *rates]:
        table.add_column(name, justify="right", no_wrap=True)
    for case, found in cases(rows):
        best = fastest(found)
        times = [_time(found.get(name), best) for name in names]
        table.add_row(f"{case['rows']}x{case['cols']}", *times, *_rates(best, product, list(peers), result))
    return table


def _time(row: Row | None, best: Row | None) -> Text:
    if row is None or "median" not in row:
        return Text("-")
    return Text(mark(row) + duration(row["median"]), style="bold" if row is best else "")


def _rates(row: Row | None, product: bool, peers: list[str], result: Result) -> list[str]:
    if row is None:
        return []
    rates = [figures(row["gflop_s"])] if product else []
    rates += [figures(row["gb_s"]), share(row["gb_s"], result)]
    return [*rates, *(figures(row[peer]) if peer in row else "" for peer in peers)]


def show(console: Console, table: RenderableType) -> None:
    """Print a table in full: a narrow terminal wraps the lines, but no figure is cut."""
    width = console.width
    console.width = max(width, PLAIN_WIDTH)
    console.print(table, crop=False)
    console.width = width


# ------------------------------------------------------------------------------------------------ files


def write_json(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
