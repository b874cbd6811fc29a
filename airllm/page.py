"""A run's results as one HTML page: nothing to load, light and dark, plots as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from airllm import report
from airllm.report import Result, Row, duration, figures, label, share

COLOURS = {"python": "#8b929c", "torch": "#e8743b", "cpp": "#2f80ed", "opencl": "#1fa37c", "cuda": "#9057d6"}
OTHER_COLOURS = ("#d6457b", "#b8912a", "#4aa8c4")
MARKERS = "osD^vP*X"
INK = "#010203"  # stands for the page's own text colour until the SVG is written

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6675; --line: #e3e6eb; --ground: #ffffff;
  --card: #f6f7f9; --good: #12805c; --bad: #c62f3b; --warn: #9a6700; --warn-ground: #fff6dc;
  --bad-ground: #fdecee; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --soft: #98a1b0; --line: #2b313c;
  --ground: #12151b;
  --card: #1a1f28; --good: #4cc79a; --bad: #ff7b84; --warn: #e5b454; --warn-ground: #2c2412;
  --bad-ground: #331a1e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.015em; }
h2 { font-size: 19px; margin: 52px 0 4px; letter-spacing: -.01em; }
h3 { font-size: 16px; margin: 36px 0 0;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p { margin: 4px 0 14px; max-width: 88ch; } .soft, figcaption, small { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px;
  margin: 26px 0 0; }
.card { background: var(--card); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 23px; line-height: 1.3; letter-spacing: -.01em; font-weight: 650; }
.card small { display: block; line-height: 1.35; }
.note { background: var(--warn-ground); color: var(--warn); border-radius: 10px; padding: 12px 16px;
  margin: 22px 0 0; }
.note.bad { color: var(--bad); background: var(--bad-ground); }
.note ul { margin: 6px 0 0; padding-left: 20px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: 10px 0 4px; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
td.n, th.n { text-align: right; padding-right: 0; padding-left: 14px; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
td small { display: block; font-size: 12px; line-height: 1.3; }
td small.inline { display: inline; padding-left: 6px; }
td.first { white-space: nowrap; width: 120px; } td.state { white-space: nowrap; width: 120px; }
tr:last-child td { border-bottom: 0; } tr.group td { border-bottom-width: 2px; } .best { font-weight: 650; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
figure { margin: 10px 0 0; overflow-x: auto; }
figure svg { width: 100%; min-width: 700px; height: auto; display: block; }
svg text { font-family: inherit !important; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; margin-top: 8px; }
.legend i { display: inline-block; width: 18px; height: 0; border-top: 3px solid; border-radius: 2px;
  margin-right: 7px; vertical-align: middle; }
.legend i.dash { border-top: 2px dashed; width: 26px; border-radius: 0; }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
pre { background: var(--card); border-radius: 10px; padding: 14px 16px; overflow-x: auto;
  font-size: 12.5px; line-height: 1.45; }
footer { margin-top: 56px; color: var(--soft); font-size: 13px; }
"""


def write(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")


def page(result: Result) -> str:
    """The whole page as text."""
    sections = (_head, _notes, _cards, _backends, _tests, _speed, _machine)
    body = "\n".join(part for section in sections for part in section(result))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>airllm on {escape(result["machine"]["cpu"])}</title><style>{STYLE}</style></head>
<body><main>
{body}
<footer>Made by <code>{escape(result["command"])}</code>; its JSON file has all figures.</footer>
</main></body></html>
"""


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
    if wrong := report.failures(result):
        items = "".join(f"<li>{escape(line)}</li>" for line in wrong[:20])
        items += f"<li>and {len(wrong) - 20} more</li>" if len(wrong) > 20 else ""
        yield f'<div class="note bad"><b>{len(wrong)} failed.</b><ul>{items}</ul></div>'


def _cards(result: Result) -> Iterator[str]:
    active = next((each for each in result["backends"] if each["state"] == "active"), None)
    tests = result["tests"]
    cards = [(active["name"], f"runs by default: {active['device']}")] if active else []
    cards.append((f"{sum(t['passed'] for t in tests)} of {len(tests)}", "checks against float64 passed"))
    cards.append((f"{result['bandwidth']['copy']:.1f} GB/s", "copy bandwidth of this machine's memory"))
    for peer in ("numpy", "torch"):
        name = active["name"] if active else ""
        if name not in report.LABELS and (mean := report.mean_ratio(result, name, peer)):
            shown = {"numpy": "NumPy", "torch": "PyTorch"}[peer]
            cards.append(
                (f"{figures(mean)}×", f"the speed of {shown}: {name}, geometric mean of everything timed")
            )
    items = "".join(f'<div class="card"><b>{escape(b)}</b><small>{escape(s)}</small></div>' for b, s in cards)
    yield f'<div class="cards">{items}</div>'


def _backends(result: Result) -> Iterator[str]:
    yield "<h2>Backends</h2>"
    colours = {"active": "good", "available": "good", "passed over": "warn", "wrong": "bad"}
    rows = []
    for each in result["backends"]:
        told = escape(each["device"])
        if each["reason"]:
            told += f'<div class="soft">{escape(each["reason"])}</div>'
        state = f'<span class="{colours.get(each["state"], "soft")}">{escape(each["state"])}</span>'
        rows.append([escape(each["name"]), state, told])
    yield _table(["Backend", "State", "Device, or why it does not run"], rows, ("first", "state", ""))
    if result["builds"]:
        rows = [[escape(b["name"]), _state(b["state"]), escape(b["detail"])] for b in result["builds"]]
        yield _table(["Build", "State", "Detail"], rows, ("first", "state", ""))


def _state(state: str) -> str:
    colour = {"failed": "bad", "skipped": "warn"}.get(state, "good")
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
        "eight of float32 at the size of the largest result. NumPy: it stands in for a kernel.</p>"
    )
    rows = []
    for op in dict.fromkeys(test["op"] for test in result["tests"]):
        rows.append([f"<code>{escape(op)}</code>", *(_verdict(result, op, name) for name in names)])
    yield _table(["Op", *names], rows)


def _dtype(test: Row) -> str:
    return test["dtype"]


def _size(test: Row) -> str:
    return f"{test['rows']}×{test['cols']}"


def _verdict(result: Result, op: str, backend: str) -> str:
    passed, made, error = report.summary(result, op, backend)
    note = " NumPy" if report.stands_in(result, op, backend) else ""
    if passed == made:
        return f'<span class="good">✓ {passed}</span> <small class="inline">{error:.2f}{note}</small>'
    return f'<span class="bad">✗ {made - passed} of {made} failed</span>'


def _speed(result: Result) -> Iterator[str]:
    if not result["speed"]:
        return
    names = report.implementations(result["speed"])
    colours = colours_of(names)
    yield "<h2>Speed</h2>"
    yield (
        "<p>Median time of a call on NumPy arrays, all libraries taking turns in one process on one input: "
        f"{escape(result['data']['source'])}. GB/s counts every array read once and the result written once; "
        "the percentage is of the memory's copy bandwidth, and what lies above it comes out of caches. A "
        "device's time includes its copies. The ratios are those of the fastest backend.</p>"
    )
    keys = "".join(f'<span><i style="color:{colours[n]}"></i>{escape(label(n))}</span>' for n in names)
    keys += '<span class="soft"><i class="dash"></i>copy bandwidth of the memory</span>'
    yield f'<div class="legend">{keys}</div>'
    for op, rows in groupby(result["speed"], key=lambda row: row["op"]):
        yield from _op(op, list(rows), colours, result)


def _op(op: str, rows: list[Row], colours: dict[str, str], result: Result) -> Iterator[str]:
    yield f"<h3>{escape(op)}</h3>"
    yield f"<figure>{plot(rows, colours, result['bandwidth']['copy'])}</figure>"
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    yield _speed_table([row for row in rows if row["dtype"] == dtypes[0]], result)
    for dtype in dtypes[1:]:
        table = _speed_table([row for row in rows if row["dtype"] == dtype], result)
        yield f"<details><summary>{escape(op)} in {escape(dtype)}</summary>{table}</details>"


def _speed_table(rows: list[Row], result: Result) -> str:
    names = report.implementations(rows)
    titles = [rows[0]["dtype"], *map(label, names), "vs NumPy"]
    titles += ["vs PyTorch"] if any("vs_torch" in row for row in rows) else []
    lines = []
    for case, found in report.cases(rows):
        best = report.fastest(found)
        cells = [_timed(found.get(name, {}), found.get(name) is best, result) for name in names]
        peers = ["vs_numpy", "vs_torch"][: len(titles) - len(names) - 1]
        ratios = [f"{figures(best[peer])}×" if best and peer in best else "" for peer in peers]
        lines.append([f"{case['rows']} × {case['cols']}", *cells, *ratios])
    return _table(titles, lines, ("first", "n"))


def _timed(row: Row, best: bool, result: Result) -> str:
    if "median" not in row:
        return f'<span class="soft">{escape(row.get("skipped", ""))}</span>'
    rates = f"<small>{figures(row['gflop_s'])} GFLOP/s</small>" if "gflop_s" in row else ""
    rates += f"<small>{figures(row['gb_s'])} GB/s, {share(row['gb_s'], result)}</small>"
    time = duration(row["median"])
    spread = f"±{50 * (row['high'] - row['low']) / row['median']:.0f} %, {row['samples']} samples"
    return f'<span{" class=best" if best else ""} title="{spread}">{time}</span>{rates}'


def _machine(result: Result) -> Iterator[str]:
    yield "<h2>Measured how</h2>"
    yield _table(["", ""], [[escape(name), escape(value)] for name, value in report.machine_lines(result)])
    if result.get("capabilities"):
        found = escape(result["capabilities"])
        yield f"<details><summary>What was detected</summary><pre>{found}</pre></details>"


def _table(titles: list[str], rows: list[list[str]], kinds: tuple[str, ...] = ("first", "")) -> str:
    """Cells are HTML; `kinds` are the columns' CSS classes, the last one that of all the rest too."""
    kinds += kinds[-1:] * (len(titles) - len(kinds))

    def cells(tag: str, row: list[str]) -> str:
        return "".join(
            f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, row, strict=False)
        )

    head = f"<thead><tr>{cells('th', titles)}</tr></thead>" if any(titles) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


# ------------------------------------------------------------------------------------------------ plots


def colours_of(names: list[str]) -> dict[str, str]:
    """A colour for each implementation, the same on every plot."""
    others = iter(OTHER_COLOURS * len(names))
    return {name: COLOURS.get(name) or next(others) for name in names}


def plot(rows: list[Row], colours: dict[str, str], copy: float) -> str:
    """GB/s (GFLOP/s for products) against size, a panel for each dtype, as an SVG element."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    unit = "gflop_s" if any("gflop_s" in row for row in rows) else "gb_s"
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": rows[0]["op"],
        "font.size": 10,
        "axes.edgecolor": INK,
    }
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(style):
        figure, panels = pyplot.subplots(1, len(dtypes), figsize=(10.6, 2.9), sharey=True, squeeze=False)
        for axes, dtype in zip(panels[0], dtypes, strict=True):
            _panel(axes, [row for row in rows if row["dtype"] == dtype], unit, colours, copy)
            axes.set_title(dtype, fontsize=10, loc="left")
        panels[0][0].set_ylabel("GFLOP/s" if unit == "gflop_s" else "GB/s")
        figure.tight_layout(pad=0.4, w_pad=1.6)
        text = _svg(figure)
        pyplot.close(figure)
    return text


def _panel(axes: Any, rows: list[Row], unit: str, colours: dict[str, str], copy: float) -> None:
    from matplotlib.ticker import LogLocator

    sizes = list(dict.fromkeys((row["rows"], row["cols"]) for row in rows))
    for (name, colour), marker in zip(colours.items(), MARKERS * len(colours), strict=False):
        mine = {(row["rows"], row["cols"]): row.get(unit) for row in rows if row["implementation"] == name}
        found = [(sizes.index(size), rate) for size, rate in mine.items() if rate]
        if found:
            axes.plot(*zip(*found, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.8)
    if unit == "gb_s":
        axes.axhline(copy, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6, zorder=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 60 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xticks(range(len(sizes)), [f"{rows}×{cols}" for rows, cols in sizes], fontsize=9)
    axes.set_xlim(-0.3, len(sizes) - 0.7)
    axes.grid(axis="y", color=INK, alpha=0.1)
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_alpha(0.3)


def _svg(figure: Any) -> str:
    """The figure as an element that takes its text colour from the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
