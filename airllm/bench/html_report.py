"""The results of a run as one self-contained HTML page, light and dark, with plots as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from airllm.bench import html_tuning, report
from airllm.bench.html_frame import frame_page, table
from airllm.bench.plots import colours_of, plot
from airllm.bench.report import Result, Row, duration, figures, label, share

RATIOS = {"vs_numpy": "vs NumPy", "vs_torch": "vs PyTorch"}


def write(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")


def page(result: Result) -> str:
    """The whole page as text."""
    sections = (_head, _notes, _cards, _model, _backends, _speed, _choice, _tests, _machine)
    body = "\n".join(part for section in sections for part in section(result))
    footer = f"Made by <code>{escape(result['command'])}</code>; its JSON file has all figures."
    return frame_page(f"airllm on {result['machine']['cpu']}", body, footer)


# ------------------------------------------------------------------------------------------------ parts


def _head(result: Result) -> Iterator[str]:
    machine = result["machine"]
    yield "<h1>airllm on this machine</h1>"
    about = f"{machine['cpu']}, {machine['isa']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB"
    yield f'<p class="soft">{escape(about)}. {escape(result["started"])}</p>'


def _notes(result: Result) -> Iterator[str]:
    data = result["data"]
    if data["why_not"]:
        yield (
            f'<div class="note"><b>Timed on {escape(data["source"])}, not on a real model\'s.</b> '
            f"{escape(data['why_not'])}</div>"
        )
    if unsure := report.doubts(result):
        text = "; ".join(unsure)
        yield f'<div class="note"><b>Figures to doubt:</b> {escape(text)}.</div>'
    if wrong := report.failures(result):
        items = "".join(f"<li>{escape(line)}</li>" for line in wrong[:20])
        items += f"<li>and {len(wrong) - 20} more</li>" if len(wrong) > 20 else ""
        yield f'<div class="note bad"><b>{len(wrong)} failed.</b><ul>{items}</ul></div>'


def _cards(result: Result) -> Iterator[str]:
    tests, cards = result["tests"], report.headline(result)
    cards.append((f"{sum(t['passed'] for t in tests)} of {len(tests)}", "checks against float64 passed"))
    cards.append((f"{result['bandwidth']['copy']:.1f} GB/s", "copy bandwidth of this machine's memory"))
    items = "".join(f'<div class="card"><b>{escape(b)}</b><small>{escape(s)}</small></div>' for b, s in cards)
    yield f'<div class="cards">{items}</div>'


def _model(result: Result) -> Iterator[str]:
    model = result.get("model")
    if not model:
        return
    yield "<h2>A model</h2>"
    if not model["rows"]:
        yield f"<p>None was timed: {escape(model['why_not'])}.</p>"
        return
    yield (
        f"<p>{escape(report.model_title(model))}. Each round is a program of its own, the backends taking "
        "turns. The first token: from the start of the program, with a short prompt, the file being in the "
        "page cache. Memory: the most that the program took, the weights among it. *: fewer than "
        f"{report.FEW} rounds, since the time was up.</p>"
    )
    titles = ["Backend", "Answer", "Prompt", "First token", "Memory", "Rounds"]
    rows = [[escape(row["backend"]), *map(escape, report.model_cells(row))] for row in model["rows"]]
    yield table(titles, rows, ("first", "told"))


def _backends(result: Result) -> Iterator[str]:
    yield "<h2>Backends</h2>"
    colours = {"active": "good", "available": "good", "passed over": "warn", "wrong": "bad"}
    rows = []
    for each in report.by_state(result):
        text = escape(each["device"])
        if each["reason"]:
            text += f'<div class="soft">{escape(each["reason"])}</div>'
        state = f'<span class="{colours.get(each["state"], "soft")}">{escape(each["state"])}</span>'
        rows.append([escape(each["name"]), state, text])
    yield table(["Backend", "State", "Device, or why it does not run"], rows, ("first", "state", "told"))
    if result["builds"]:
        rows = [[escape(b["name"]), _state(b["state"]), escape(b["detail"])] for b in result["builds"]]
        yield table(["Build", "State", "Detail"], rows, ("first", "state", "told"))


def _state(state: str) -> str:
    colour = {"failed": "bad", "skipped": "warn", "unavailable": "warn"}.get(state, "good")
    return f'<span class="{colour}">{escape(state)}</span>'


def _tests(result: Result) -> Iterator[str]:
    if not result["tests"]:
        return
    names = list(dict.fromkeys(test["backend"] for test in result["tests"]))
    dtypes, sizes = (list(dict.fromkeys(map(key, result["tests"]))) for key in (_dtype, _size))
    yield "<h2>Correctness</h2>"
    yield (
        f"<p>Every backend against the definitions in float64: {', '.join(dtypes)} at {', '.join(sizes)}. "
        "The small figure is the largest error as a share of what is allowed: two steps of the dtype, and "
        "eight of float32 at the size of the largest result. NumPy: it stands in for a kernel. "
        f"{report.omitted_note(result)}</p>"
    )
    rows = []
    for op in dict.fromkeys(test["op"] for test in result["tests"]):
        rows.append([f"<code>{escape(op)}</code>", *(_verdict(result, op, name) for name in names)])
    yield table(["Op", *names], rows)


def _dtype(test: Row) -> str:
    return test["dtype"]


def _size(test: Row) -> str:
    return f"{test['rows']}×{test['cols']}"


def _verdict(result: Result, op: str, backend: str) -> str:
    passed, checks, error = report.summary(result, op, backend)
    note = " NumPy" if report.stands_in(result, op, backend) else ""
    if passed == checks:
        return f'<span class="good">✓ {passed}</span> <small class="inline">{error:.2f}{note}</small>'
    return f'<span class="bad">✗ {checks - passed} of {checks} failed</span>'


def _speed(result: Result) -> Iterator[str]:
    if not result["speed"]:
        return
    names = report.implementations(result["speed"])
    colours = colours_of(names)
    yield "<h2>Speed of ops</h2>"
    yield (
        "<p>Median time of a call on NumPy arrays, all libraries taking turns in one process on one input: "
        f"{escape(result['data']['source'])}. GB/s counts every array read once and the result written once; "
        "the percentage is of the memory's copy bandwidth, and what lies above it comes out of caches. A "
        f"device's time includes its copies. {report.rounds(result)} The ratios are those of the "
        f"fastest backend.{_only(result)}</p>"
    )
    keys = "".join(f'<span><i style="color:{colours[n]}"></i>{escape(label(n))}</span>' for n in names)
    keys += '<span class="soft"><i class="dash"></i>copy bandwidth of the memory</span>'
    yield f'<div class="legend">{keys}</div>'
    for op, rows in groupby(result["speed"], key=lambda row: row["op"]):
        yield from _op(op, list(rows), colours, result)


def _only(result: Result) -> str:
    """A note if only one dtype was timed, else "": without it, a reader could think there is no other."""
    dtypes = {row["dtype"] for row in result["speed"]}
    return f" Timed in {next(iter(dtypes))} alone: --quick and --dtypes leave out others." * (
        len(dtypes) == 1
    )


def _op(op: str, rows: list[Row], colours: dict[str, str], result: Result) -> Iterator[str]:
    yield f"<h3>{escape(op)}</h3>"
    yield f"<figure>{plot(rows, colours, result['bandwidth']['copy'])}</figure>"
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    yield _speed_table([row for row in rows if row["dtype"] == dtypes[0]], result)
    for dtype in dtypes[1:]:
        times = _speed_table([row for row in rows if row["dtype"] == dtype], result)
        yield f"<details><summary>{escape(op)} in {escape(dtype)}</summary>{times}</details>"


def _speed_table(rows: list[Row], result: Result) -> str:
    """The first backend, the ratios, then the rest: a phone shows only the first columns."""
    first, *others = report.implementations(rows)
    peers = {key: title for key, title in RATIOS.items() if any(key in row for row in rows)}
    lines = []
    for case, found in report.cases(rows):
        best = report.fastest(found)
        ratios = [f"{figures(best[key])}×" if best and key in best else "" for key in peers]
        cells = {
            name: _time_cell(found.get(name, {}), found.get(name) is best, result)
            for name in (first, *others)
        }
        size = f"{case['rows']} × {case['cols']}"
        lines.append([size, cells[first], *ratios, *(cells[name] for name in others)])
    titles = [rows[0]["dtype"], label(first), *peers.values(), *map(label, others)]
    return table(titles, lines, ("first", "n"))


def _time_cell(row: Row, best: bool, result: Result) -> str:
    if "median" not in row:
        return f'<span class="soft">{escape(row.get("skipped", ""))}</span>'
    rates = f"<small>{figures(row['gflop_s'])} GFLOP/s</small>" if "gflop_s" in row else ""
    rates += f"<small>{figures(row['gb_s'])} GB/s, {share(row['gb_s'], result)}</small>"
    time = duration(row["median"])
    samples = f"{row['samples']} samples" + (f" in {row['rounds']} rounds" if "rounds" in row else "")
    cell = f'<span{" class=best" if best else ""} title="{samples}">{report.mark(row)}{time}</span>'
    return f"{cell}<small>{report.spread(row)}</small>{rates}"


def _choice(result: Result) -> Iterator[str]:
    if result.get("choice"):
        yield from html_tuning.section(result["choice"])


def _machine(result: Result) -> Iterator[str]:
    yield "<h2>Measured how</h2>"
    yield table(["", ""], [[escape(name), escape(value)] for name, value in report.machine_lines(result)])
    if result.get("capabilities"):
        found = escape(result["capabilities"])
        yield f"<details><summary>What was detected</summary><pre>{found}</pre></details>"
