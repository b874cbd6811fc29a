"""The tables and the page made of results."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from airllm.bench import (
    html_frame,
    html_report,
    html_tuning,
    plots,
    report,
)


def row(op, dtype, size, name, median, **more):
    figures = {"low": median * 0.9, "high": median * 1.1, "samples": 9, "bytes": 8 * size[0] * size[1]}
    figures |= {"median": median, "gb_s": 8 * size[0] * size[1] / median / 1e9}
    return (
        {"op": op, "dtype": dtype, "rows": size[0], "cols": size[1], "implementation": name} | figures | more
    )


def figure(median):
    return {"median": median, "low": 0.97 * median, "high": 1.03 * median}


@pytest.fixture
def result():
    speed = []
    for op in ("silu", "matmul"):
        for dtype in ("float32", "float16"):
            for size in ((1, 64), (128, 4096)):
                work = size[0] * size[1]
                more = {"gflop_s": 3.0} if op == "matmul" else {}
                speed += [
                    row(op, dtype, size, "cpp", work * 1e-11, vs_numpy=4.0, vs_torch=2.0, **more),
                    row(op, dtype, size, "python", work * 4e-11, vs_numpy=1.0, vs_torch=0.5, **more),
                    row(op, dtype, size, "torch", work * 2e-11, vs_numpy=2.0, vs_torch=1.0, **more),
                ]
    slow = {"op": "matmul", "dtype": "float16", "rows": 128, "cols": 4096, "implementation": "opencl"}
    speed.append(slow | {"skipped": "would take about 9 s a call"})
    tests = [
        {"backend": name, "op": op, "dtype": "float32", "rows": 1, "cols": 1}
        | {"error": 0.5, "message": "", "passed": True, "how": "kernel" if op == "silu" else "NumPy"}
        for name in ("cpp", "python") for op in ("silu", "matmul")
    ]  # fmt: skip
    return {
        "format": 1, "started": "2026-01-02 03:04:05", "command": "python detect_and_benchmark.py",
        "capabilities": "CPU: <some> & more", "threads": {"torch": 2}, "speed": speed, "tests": tests,
        "builds": [{"name": "cpp", "state": "built", "detail": "in 3 s"}],
        "backends": [
            {"name": "cuda", "state": "unavailable", "device": "", "reason": "no <driver> is installed"},
            {"name": "opencl", "state": "passed over", "device": "a PoCL", "reason": "a CPU device only"},
            {"name": "cpp", "state": "active", "device": "a CPU (avx2)", "reason": ""},
            {"name": "python", "state": "available", "device": "NumPy 2", "reason": ""},
        ],
        "machine": {
            "cpu": "A CPU", "isa": "avx2", "cores": 2, "last_cache_mb": 32.0, "memory_gb": 8.0,
            "system": "Linux", "compiler": "g++ 12", "python": "3.11", "versions": {"numpy": "2"},
        },
        "bandwidth": {"copy": 20.0, "read": 25.0, "how": "by a test"},
        "data": {"real": True, "source": "a real model", "why_not": ""},
        "others": {"cores": 0.1, "busy": ""},
        "model": {"name": "A model", "why_not": "", "rows": [
            {"backend": "cpp", "rounds": 5, "estimate": 200.0, "prompt_tokens": 512, "new_tokens": 64}
            | {"answer": figure(206.4), "prompt": figure(1290.0)}
            | {"first_token": figure(0.42), "memory": figure(2e8)},
            {"backend": "python", "rounds": 0, "estimate": 0.9, "why_not": "far slower: about 0.9 tokens/s"},
        ]},
    }  # fmt: skip


def text_of(*tables):
    """What a terminal shows of them."""
    console = report.console(record=True)
    for each in tables:
        report.show(console, each)
    return console.export_text()


class Page(HTMLParser):
    """Every text, start tag and attribute of a page; raises if tags do not nest."""

    VOID = {"meta", "path", "use", "br", "rect"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_every_backend_with_its_reason_and_a_plot_for_each_op(result):
    found = Page(html_report.page(result))
    assert found.tags.count("svg") == 4  # for each dtype
    for told in ("no <driver> is installed", "a CPU device only", "a CPU (avx2)", "passed over", "by a test"):
        assert told in found.text
    assert "GFLOP/s" in found.text and "GB/s" in found.text and "would take about 9 s" in found.text
    assert "4.00×" in found.text and "2.00×" in found.text and "4 of 4" in found.text


def test_backends_that_run_come_before_those_that_do_not(result):
    names = ["cpp", "python", "opencl", "cuda"]
    assert [each["name"] for each in report.by_state(result)] == names
    lines = text_of(report.backends_table(result)).splitlines()
    assert [line.split()[0] for line in lines if line[:1].islower() and "  " in line] == names
    text = Page(html_report.page(result)).text
    places = [text.index(told) for told in ("a CPU (avx2)", "NumPy 2", "a PoCL", "no <driver>")]
    assert places == sorted(places)


def test_the_page_loads_nothing(result):
    found = Page(html_report.page(result))
    assert not {"script", "img", "iframe", "link"} & set(found.tags)
    assert not [
        value for name, value in found.attributes if name in ("src", "href") and not value.startswith("#")
    ]
    assert "@import" not in html_frame.STYLE and "url(" not in html_frame.STYLE


def test_a_plot_has_a_line_for_each_side_and_the_copy_bandwidth(result):
    rows = [each for each in result["speed"] if each["op"] == "silu"]
    text = plots.plot(rows, plots.colours_of(["cpp", "python", "torch"]), 20.0)
    for colour in ("cpp", "python", "torch"):
        assert plots.COLOURS[colour] in text
    assert "stroke-dasharray" in text and plots.INK not in text and "currentColor" in text
    assert "128×4096" in text and "float16" in text


def test_the_page_says_first_that_the_input_is_not_real(result):
    result["data"] = {"real": False, "source": "random numbers", "why_not": "no network here"}
    text = Page(html_report.page(result)).text
    assert "not on a real model's" in text and text.index("no network here") < text.index("Backends")


def test_the_page_says_first_what_failed(result):
    result["tests"][0] |= {"passed": False, "error": 3.5}
    result["backends"][0] |= {"state": "wrong", "reason": "silu(1) is wrong"}
    result["builds"][0] |= {"state": "failed", "detail": "no such file"}
    assert report.failures(result) == [
        "build: cpp: no such file",
        "backend: cuda: silu(1) is wrong",
        "check: cpp: silu 1x1 float32: error is 3.50 times what is allowed",
    ]
    text = Page(html_report.page(result)).text
    assert "3 failed." in text and "3 of 4" in text


def test_tables_in_a_pipe_have_no_control_codes_and_are_not_cut(result, capsys):
    console = report.console()
    for table in (report.machine_table, report.builds_table, report.backends_table, report.tests_table):
        console.print(table(result))
    for table in report.speed_tables(result):
        report.show(console, table)
    text = capsys.readouterr().out
    assert "\x1b" not in text and "…" not in text
    for told in ("no <driver> is installed", "1/1  0.50", "a real model", "128x4096", "4.00", "GFLOP/s"):
        assert told in text


def test_an_op_without_a_kernel_is_shown_as_numpys(result):
    assert report.stands_in(result, "matmul", "cpp") and not report.stands_in(result, "silu", "cpp")
    assert not report.stands_in(result, "matmul", "python")  # it is NumPy
    console = report.console(record=True)
    console.print(report.tests_table(result))
    lines = {line.split()[0]: line for line in console.export_text().splitlines() if line.split()}
    assert lines["matmul"].count("NumPy") == 1 and "NumPy" not in lines["silu"]
    assert "0.50 NumPy" in Page(html_report.page(result)).text


def test_a_narrow_terminal_cuts_no_figure(result, capsys):
    for table in report.speed_tables(result):
        report.show(report.Console(width=40, force_terminal=True), table)
    text = capsys.readouterr().out
    assert "…" not in text and "x PyTorch" in text and "131 µs" not in text and "5.24 µs" in text


def test_ratios_are_those_of_the_fastest_backend(result):
    case, found = next(iter(report.cases(result["speed"])))
    assert (case["op"], sorted(found)) == ("silu", ["cpp", "python", "torch"])
    assert report.fastest(found)["implementation"] == "cpp"
    found["torch"]["median"] = 1e-15
    assert report.fastest(found)["implementation"] == "cpp"
    assert report.ratios(result, "cpp", "torch") == [2.0] * 4 and report.ratios(result, "cuda", "torch") == []


@pytest.mark.parametrize(
    "seconds, shown", [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (1e-6, "1.00 µs"), (123.4e-9, "123 ns")]
)
def test_durations(seconds, shown):
    assert report.duration(seconds) == shown


def test_what_there_was_no_time_for_is_said(result):
    assert report.rounds(result) == report.omitted_note(result) == ""
    for row in result["speed"]:
        row["rounds"] = 7
    result["speed"][0]["rounds"], result["checks_left_out"] = 1, 12
    assert report.rounds(result).startswith("Each time is the median of 1 to 7 rounds (*: fewer than 3")
    one = {"speed": [{"rounds": 1}]}
    assert report.rounds(one).startswith("Each time is of one round (*: fewer than 3")
    console = report.console(record=True)
    console.print(report.tests_table(result))
    for table in report.speed_tables(result):
        report.show(console, table)
    for text in (console.export_text(), Page(html_report.page(result)).text):
        assert text.count("*0.64 ns") == 1 and "12, of larger sizes" in text


def test_json_comes_back_as_it_was(result, tmp_path):
    path = tmp_path / "new" / "report.json"
    report.write_json(result, path)
    assert json.loads(path.read_text()) == result
    with pytest.raises(ValueError):
        report.write_json(result | {"seconds": float("nan")}, path)


def test_every_benchmark_says_what_it_does():
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    told = (folder / "README.md").read_text()
    for script in folder.glob("bench*.py"):
        assert f"`{script.name}`" in told, script.name
        assert os.access(script, os.R_OK) and script.read_text().startswith('"""')


def test_the_model_comes_first_and_ops_stand_for_many_in_float32_alone(result):
    for each in result["speed"]:
        if each["dtype"] == "float16" and each["implementation"] == "cpp":
            each["vs_numpy"] = 4e5  # NumPy makes float32 of a whole table, for a row of it
    assert report.headline(result) == [
        ("206 tokens/s", "an answer of A model on cpp"),
        ("1290 tokens/s", "a prompt of 512 tokens"),
        ("420 ms", "to the first token, from the start of the program"),
        ("200.0 MB", "of memory at most"),
        (
            "4.00×",
            "the speed of NumPy: ops on cpp in float32, the median of 4 (half of them: 4.00× to 4.00×)",
        ),
        (
            "2.00×",
            "the speed of PyTorch: ops on cpp in float32, the median of 4 (half of them: 2.00× to 2.00×)",
        ),
    ]
    text = Page(html_report.page(result)).text
    places = [
        text.index(told)
        for told in ("206 tokens/s", "A model: tokens", "Backends", "Speed of ops", "Correct")
    ]
    assert places == sorted(places)
    for shown in (text, text_of(report.model_table(result))):
        assert "206 ±3 % (64 tokens)" in shown and "far slower: about 0.9 tokens/s" in shown


def test_on_a_telephone_the_backend_and_its_ratios_are_seen_first(result):
    rows = [each for each in result["speed"] if each["op"] == "matmul" and each["dtype"] == "float16"]
    table = Page(html_report._speed_table(rows, result)).text
    assert table.startswith("float16cppvs NumPyvs PyTorchopenclNumPyPyTorch1 × 64") and "4.00×2.00×" in table


def test_pages_say_that_one_dtype_is_not_all(result):
    assert "alone: --quick and --dtypes leave out others" not in Page(html_report.page(result)).text
    result["speed"] = [each for each in result["speed"] if each["dtype"] == "float32"]
    assert (
        "Timed in float32 alone: --quick and --dtypes leave out others" in Page(html_report.page(result)).text
    )
    measured = {"op": "silu", "shapes": [[1, 64]], "us": {"cpp": [1.0, 0.9, 1.1]}, "winner": "cpp"}
    for dtypes, said in ((("float32",), True), (("float32", "float16"), False)):
        choice = {"rows": [measured | {"dtype": dtype} for dtype in dtypes]}
        text = "".join(html_tuning.section(choice))
        assert ("Measured in float32 alone, as --quick does" in text) == said


def test_without_float32_no_figure_stands_for_many(result):
    result["speed"] = [each for each in result["speed"] if each["dtype"] == "float16"]
    result["model"] |= {"rows": [], "why_not": "--no-real-data was given"}
    assert report.headline(result) == []
    assert "None was timed: --no-real-data was given" in Page(html_report.page(result)).text
    assert "No model was timed: --no-real-data was given" in text_of(report.model_table(result))


def test_figures_of_one_round_have_no_spread_and_are_marked(result):
    result["model"]["rows"][0]["rounds"] = 1
    assert "*206 (64 tokens)" in text_of(report.model_table(result))


def test_a_busy_machine_and_times_that_vary_are_said_before_any_figure(result):
    assert report.doubts(result) == []
    assert "Figures to doubt" not in Page(html_report.page(result)).text
    result["others"]["busy"] = "the machine is busy: other programs take 1.5 of its 2 cores"
    for row in result["speed"][:3]:
        row |= {"low": 0.4 * row["median"], "high": 1.4 * row["median"]}
    busy, varies = report.doubts(result)
    assert busy.startswith("the machine is busy") and varies == "3 of 24 times of ops vary much (marked ~)"
    text = Page(html_report.page(result)).text
    assert text.index("Figures to doubt: the machine is busy") < text.index("206 tokens/s")
    for shown in (text, text_of(*report.speed_tables(result))):
        assert shown.count("~0.64 ns") == 1
    for row in result["speed"]:
        row["rounds"] = 7
    assert "~: the middle half of its calls" in report.rounds(result)


def test_one_call_that_a_busy_machine_held_up_makes_no_headline(result):
    """As NumPy's threads are, which wait for each other: 14 us alone, 18 ms beside another program."""
    row = next(each for each in result["speed"] if each["implementation"] == "python")
    row |= {"median": 18e-3, "low": 17e-3, "high": 19e-3, "best": 14e-6}
    result["speed"][0]["vs_numpy"] = 1691.0
    assert report.is_noisy(row) and not report.is_noisy(row | {"best": 16e-3})
    assert report.headline(result)[4][0] == "4.00×" and "~18.0 ms" in text_of(*report.speed_tables(result))


def test_what_a_backend_is_compared_with_stands_behind_it(result):
    assert report.implementations(result["speed"]) == ["cpp", "opencl", "python", "torch"]


def test_letters_of_plots_can_be_read_on_a_telephone(result):
    rows = [each for each in result["speed"] if each["op"] == "silu"]
    text = plots.plot(rows, plots.colours_of(["cpp", "python", "torch"]), 20.0)
    widths = [float(width) for width in re.findall(r'<svg [^>]*width="([\d.]+)pt"', text)]
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)]
    assert len(widths) == 2 and len(sizes) > 10
    assert min(sizes) * 340 / max(widths) > 11  # pixels, on a page 340 wide


def test_names_of_sizes_that_do_not_fit_beside_each_other_are_slanted():
    rows = [row("matmul", "float32", (size, 4096), "cpp", 1e-3, gflop_s=3.0) for size in (1, 128, 512, 4096)]
    for some, slanted in ((rows[:2], False), (rows, True)):
        assert ("rotate(-35" in plots.plot(some, plots.colours_of(["cpp"]), 20.0)) == slanted


def test_words_have_no_narrow_column_and_paths_are_broken():
    words = html_frame.table(
        ["Backend", "State", "Why"], [["cpp", "active", "a/long/path"]], ("first", "state", "told")
    )
    assert '<table class="words">' in words and '<td class="told">a/long/path</td>' in words
    assert "words" not in html_frame.table(["Size", "cpp"], [["1", "2"]], ("first", "n"))
    assert ".note, .told, footer { overflow-wrap: anywhere; }" in html_frame.STYLE
