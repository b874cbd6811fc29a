"""How calls are timed, and how results are checked before."""

import json
import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from airllm.bench import (
    activations,
    machine_load,
    measure,
    op_benchmark,
    torch_peer,
)
from airllm.bench.shapes import case_of
from airllm.tensor_ops import OPS

# ---- measure ----


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
    assert "an array of 8 MB" in found.how


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


# ---- checks ----


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
    monkeypatch.setattr(op_benchmark.backends, "kernel", kernel_that(answer))
    found = op_benchmark._check_case("cpp", OPS["silu"], "float32", 2, 257, activations.random_data("a test"))
    assert not found.passed and message in found.message


@pytest.mark.parametrize("dtype", op_benchmark.DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_the_rounded_exact_result_passes(name, dtype, monkeypatch):
    op = OPS[name]

    def exact(*arrays, **parameters):
        result = op.exact(*arrays, **parameters)
        if op.gives_quantized:
            return result
        rounded = [r.astype(op.result_dtype(arrays)) for r in op.each(result)]
        return rounded[0] if len(rounded) == 1 else tuple(rounded)

    monkeypatch.setattr(op_benchmark.backends, "kernel", kernel_that(exact))
    for size in op_benchmark.CHECKED:
        assert op_benchmark._check_case("cpp", op, dtype, *size, activations.random_data("a test")).passed


@pytest.mark.parametrize("passed", (True, False), ids=["one by one", "of half precision"])
def test_a_product_whose_terms_cancel_is_held_against_what_was_added(passed, monkeypatch):
    """Added one by one in float32 is right, though it is far off beside what is left in the end."""
    rng = np.random.default_rng(5)
    query, keys = rng.standard_normal(513, np.float32), rng.standard_normal((2, 513), np.float32)
    keys[:, 0] -= (keys.astype(np.float64) @ query) / query[0]  # what is left is what this is rounded by

    def scores(query, keys, scale=1.0):
        dtype = np.float32 if passed else np.float16
        terms = keys.astype(dtype) * query.astype(dtype)
        return np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]

    monkeypatch.setattr(op_benchmark.backends, "kernel", kernel_that(scores))
    data = SimpleNamespace(inputs=lambda *_: [query, keys])
    found = op_benchmark._check_case("cpp", OPS["attention_scores"], "float32", 2, 513, data)
    assert found.error is not None and found.passed == passed


def test_each_op_is_checked_once_however_little_time_there_is():
    what = ["python"], ["silu", "gelu"], ["float32", "float16"]
    found = op_benchmark.check(*what, activations.random_data("a test"), lambda *_: None, seconds=0)
    assert [each["op"] for each in found] == ["silu", "gelu"] and all(each["passed"] for each in found)
    assert len(op_benchmark.cases_to_check(*what)) == 2 * 2 * len(op_benchmark.CHECKED)


def test_speed_tells_ratios_and_rates_of_what_it_timed():
    rows = op_benchmark.speed(
        ["python"], ["silu", "matmul"], ["float32"], [(4, 64)], activations.random_data("a test"),
        op_benchmark.Limits(0.01), lambda done, total, text: None,
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

    monkeypatch.setattr(op_benchmark, "make_call", slow)
    rows = op_benchmark.speed(
        ["python"], ["silu"], ["float32"], [(10000, 100), (1, 100)], activations.random_data("a test"),
        op_benchmark.Limits(0.01, longest=0.1), lambda done, total, text: None,
    )  # fmt: skip
    assert ["median" in row for row in rows if row["implementation"] == "python"] == [True, False]
    assert "would take about 1 s" in rows[-1]["skipped"]


def test_bfloat16_reaches_torch_unchanged():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    tensor = torch_peer.as_torch(x)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("name", OPS)
def test_torch_computes_the_same_op(name):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    op, parameters = OPS[name], case_of(OPS[name], 3, 64).parameters
    arrays = activations.random_data("a test").inputs(op, 3, 64, np.float32, np.random.default_rng(0))
    call = torch_peer.torch_call(name, arrays)
    if "quantized" in {operand.kind for operand in (*op.operands, *op.outs)}:
        assert call is None
        return
    exact = op.exact(*arrays, **parameters)
    for found, expected in zip(op.each(call()), op.each(exact), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


STAT = """cpu  9 9 9 9 9 9 9 9 0 0
cpu0 {0} 0 100 5000 900 0 0 50 77 0
cpu1 100 0 100 5000 900 0 0 50 77 0
cpu2 {1} 0 100 5000 900 0 0 50 77 0
intr 5
"""


@pytest.fixture
def stat(monkeypatch, tmp_path):
    """A machine of three processors, two of which are this process's, with a clock of the test's."""
    seen = SimpleNamespace(now=0.0, own=0.0, file=tmp_path / "stat")
    zeros = dict.fromkeys(("user", "children_user", "children_system"), 0.0)
    monkeypatch.setattr(machine_load, "STAT", seen.file)
    monkeypatch.setattr(machine_load, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(machine_load.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(machine_load.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(machine_load.os, "times", lambda: SimpleNamespace(system=seen.own, **zeros))
    monkeypatch.setattr(machine_load.os, "getloadavg", lambda: (1.25, 0, 0), raising=False)
    return seen


def test_other_programs_are_what_is_not_ones_own(stat):
    stat.file.write_text(STAT.format(1000, 0))
    others = machine_load.OtherPrograms()
    stat.now, stat.own = 4.0, 1.5
    stat.file.write_text(STAT.format(1000 + 350, 90000))  # 3.5 s on a processor of ours, 900 s on another
    assert others.cores() == pytest.approx((3.5 - 1.5) / 4)
    stat.own = 3.6
    assert others.cores() == 0


def test_where_no_processor_is_told_of_the_load_at_first_counts(stat):
    assert machine_load.OtherPrograms().cores() == 1.25


def test_a_machine_is_busy_when_others_take_a_quarter_of_it(monkeypatch):
    monkeypatch.setattr(machine_load, "usable_cores", lambda: 4)
    assert machine_load.busy(1.0) == "" and "other programs take 1.1 of its 4 cores" in machine_load.busy(1.1)
