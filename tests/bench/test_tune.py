"""`airllm tune`: what it measures, leaves out, writes and shows."""

import pytest

from airllm.backends import registry, tuning_file
from airllm.bench import html_tuning, op_benchmark, tune
from airllm.cli import commands
from airllm.ops.op import OPS

TINY = tune.Plan(("float32",), ((1, 64), (4, 64)), ((1, 64), (4, 64)), 0.001)


@pytest.fixture
def only_quick_backends(monkeypatch):
    names = [name for name in registry.available() if name in ("cpp", "python")]
    monkeypatch.setattr(registry, "available", lambda: names)
    return names


def test_the_command_measures_writes_and_draws(only_quick_backends, tmp_path, monkeypatch, capsys):
    file = tmp_path / "tuning.json"
    file.write_text("a file that is broken is replaced")
    monkeypatch.setenv("AIRLLM_TUNING", str(file))
    monkeypatch.setattr(tune, "QUICK", TINY)
    assert commands.main(["tune", "--ops", "silu,linear", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert f"Written to {file}" in printed and "runs every op" in printed
    found = tuning_file.read(file)
    assert list(found.ops) == ["silu", "linear"] and not found.machine.changes(found.machine.backends)
    for points in (found.ops["silu"]["float32"], found.ops["linear"]["float32"]):
        assert [list(p.times) for p in points] == [only_quick_backends] * 2
    page = (tmp_path / "tuning.html").read_text()
    assert page.count("<svg") == 2 and "(4, 64)" not in page and "4×64" in page


def test_the_command_refuses_what_it_cannot_do(monkeypatch, capsys):
    assert commands.main(["tune"]) == 1
    assert "AIRLLM_TUNING=off" in capsys.readouterr().err
    monkeypatch.setenv("AIRLLM_TUNING", "/nowhere/tuning.json")
    assert commands.main(["tune", "--ops", "dequantize"]) == 1
    assert "unknown op 'dequantize'; known: rms_norm" in capsys.readouterr().err


def test_a_broken_configuration_is_a_line_and_no_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("AIRLLM_CONFIG", str(tmp_path / "none.json"))
    monkeypatch.delenv("AIRLLM_TUNING")
    assert commands.main(["tune"]) == 1
    assert capsys.readouterr().err.startswith("airllm: AIRLLM_CONFIG=")


def test_a_backend_that_seems_to_lose_is_measured_again(monkeypatch):
    """The first time, something else has held it up."""
    usual = registry.best().name
    rounds = iter([{usual: 90.0, "other": 5.0}, {usual: 1.0, "other": 5.0}])

    def compare(calls, *rest):
        told = next(rounds)
        return {
            name: op_benchmark.measure.Timing(told[name] / 1e6, told[name] / 1e6, told[name] / 1e6, 9)
            for name in calls
        }

    monkeypatch.setattr(tune.measure, "compare", compare)
    assert tune.time_twice({usual: None, "other": None}, 1.0)[usual].median == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("last", "next_steps", "left_out"),
    [((0.004, 64), 1 << 24, False), ((0.02, 64), 128, False), ((0.02, 64), 1024, True)],
)
def test_a_call_that_would_take_too_long_is_left_out(last, next_steps, left_out):
    assert tune.is_too_long(*last, next_steps) is left_out


def test_every_tunable_op_can_be_measured_at_every_size_of_both_plans():
    for name in tune.tunable():
        for plan in (tune.FULL, tune.QUICK):
            steps = [
                op_benchmark.case_of(OPS[name], *size).steps(OPS[name])
                for size in tune.sizes_of(OPS[name], plan)
            ]
            assert steps == sorted(steps) and len(steps) >= 4
    assert set(OPS) - set(tune.tunable()) == {"dequantize"}


def test_the_page_marks_what_is_chosen_and_what_took_too_long(tmp_path):
    row = {
        "op": "silu",
        "dtype": "float32",
        "shapes": [[1, 64]],
        "us": {"cpp": [1.0, 1.0, 1.0]},
        "winner": "cpp",
    }
    rows = [row, {**row, "shapes": [[8, 64]], "us": {"python": [2.0, 2.0, 2.0]}, "winner": "python"}]
    text = "\n".join(html_tuning.section({"rows": rows}))
    assert text.count("class=best") == 2 and text.count("too slow to be measured") == 2 and "<svg" in text
