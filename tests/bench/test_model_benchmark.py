"""How the report times a model: a program for each round, backends in turns, slow ones left out."""

import pytest

from airllm.bench import model_benchmark
from airllm.bench.model_benchmark import ANSWER, FIGURES, PROMPT, measure_model
from tests.support.models import speaking_model


def ignore_progress(*_):
    """Progress that nobody watches."""


@pytest.fixture
def programs(monkeypatch):
    """Programs that are not run: tokens a second of each backend, or why it makes none."""

    def make(speeds):
        def record_call(path, name, threads, *tokens):
            started.append((name, *tokens))
            if isinstance(speeds[name], str):
                return {"why_not": speeds[name]}
            if not tokens:
                return {"estimate": speeds[name]}
            turn = sum(each[0] == name and len(each) > 1 for each in started)
            figures = {"answer": speeds[name] + turn, "prompt": 9.0, "first_token": 0.5, "memory": 1000}
            return figures | dict(zip(("prompt_tokens", "new_tokens"), tokens, strict=True))

        started = []
        monkeypatch.setattr(model_benchmark, "_ask_process", record_call)
        return started

    return make


def test_a_model_is_timed_in_programs_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(model_benchmark, "SLOW", 1e12)  # few tokens: its context is 64
    (row,) = measure_model(
        speaking_model.write(tmp_path, max_position_embeddings=128), ["python"], 1, ignore_progress, rounds=2
    )
    assert row["backend"] == "python" and row["rounds"] == 2 and row["estimate"] > 0
    assert (row["prompt_tokens"], row["new_tokens"]) == (64, ANSWER)
    for figure in FIGURES:
        assert 0 < row[figure]["low"] <= row[figure]["median"] <= row[figure]["high"], figure
    assert row["first_token"]["median"] < 60 and row["memory"]["median"] > 1e6


def test_a_program_that_fails_says_why(tmp_path):
    (row,) = measure_model(tmp_path / "none.gguf", ["python"], 1, ignore_progress)
    assert "none.gguf" in row["why_not"] and row["rounds"] == 0 and "answer" not in row


def test_backends_take_turns_and_the_fastest_comes_first(programs):
    started = programs({"python": 30.0, "cpp": 100.0})
    rows = measure_model(None, ["python", "cpp"], 2, ignore_progress, rounds=3)
    assert [name for name, *tokens in started if tokens] == ["python", "cpp"] * 3
    assert [row["backend"] for row in rows] == ["cpp", "python"]
    assert rows[0]["answer"] == {"median": 102, "low": 101.5, "high": 102.5} and rows[0]["rounds"] == 3


def test_a_backend_that_is_far_slower_or_fails_is_not_timed(programs):
    started = programs({"cpp": 200.0, "python": 1.0, "cuda": "no device", "mlx": 11.0})
    rows = {
        row["backend"]: row
        for row in measure_model(None, ["cpp", "python", "cuda", "mlx"], 2, ignore_progress, rounds=2)
    }
    assert rows["python"]["why_not"] == "far slower: about 1.0 tokens/s, by its first layers"
    assert rows["cuda"]["why_not"] == "no device"
    assert {name for name, *tokens in started if tokens} == {"cpp", "mlx"}


def test_a_slow_machine_gets_few_tokens(programs):
    assert model_benchmark.lengths(200) == (PROMPT, ANSWER)
    assert model_benchmark.lengths(4) == (64, 16) and model_benchmark.lengths(0.1) == (64, 2)
    started = programs({"python": 4.0})
    measure_model(None, ["python"], 2, ignore_progress, rounds=1)
    assert started[-1] == ("python", 64, 16)


def test_when_the_time_is_up_the_first_has_one_round(programs):
    started = programs({"cpp": 200.0, "python": 150.0})
    rows = measure_model(None, ["cpp", "python"], 2, ignore_progress, within=0)
    assert [row["rounds"] for row in rows] == [1, 0] and rows[1]["why_not"] == "the time was up"
    assert started == [("cpp",), ("cpp", PROMPT, ANSWER)]
