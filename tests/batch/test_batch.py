"""`airllm batch`: the answers are those of the server, and a kill loses nothing."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter

import pytest
import serving

from airllm.batch.requests_file import RequestsFile
from airllm.batch.results_file import ResultsFile
from airllm.batch.run import answer_all, batch_limits
from airllm.cli import main
from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.scheduler import Scheduler

VARYING = {"id", "created", "created_at", "completed_at", "system_fingerprint", "timings", "usage"}


def steady(value):
    """An answer without what differs from call to call: names, times, and what was cached."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if key not in VARYING}
    return [steady(each) for each in value] if isinstance(value, list) else value


def results(path):
    """What each request got. No request has two results."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(line) == {"id", "custom_id", "response", "error"} and not line["error"] for line in lines)
    responses = {line["custom_id"]: line["response"] for line in lines}
    assert len(responses) == len(lines)
    return {id: (each["status_code"], steady(each["body"])) for id, each in responses.items()}


def run(*arguments):
    return main(["batch", *map(str, arguments), "--threads", "1"])


@pytest.fixture(scope="module")
def whole(model, requests, tmp_path_factory):
    """The results of a run that nothing disturbed."""
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    assert run(requests, path, model, "-q") == 3
    return results(path)


def test_each_answer_is_that_of_a_single_request_to_the_server(model, requests, whole):
    with serving.serve(model) as server, server.http() as http:
        for line in map(json.loads, requests.read_text().splitlines()):
            answer = http.post(line["url"], json=line["body"])
            assert whole[line["custom_id"]] == (answer.status_code, steady(answer.json())), line
    assert [id for id, (status, _) in whole.items() if status != 200] == ["request-3"]
    assert whole["request-3"][1]["error"]["param"] == "temperature"


def test_killed_again_and_again_it_loses_nothing_and_does_nothing_twice(
    model, requests, whole, tmp_path, capfd
):
    path = tmp_path / "results.jsonl"
    path.touch()
    for kill, status in ((signal.SIGKILL, -9), (signal.SIGKILL, -9), (signal.SIGINT, 130)):
        before = path.stat().st_size
        process = forked(lambda: run_slowly(requests, path, model, "--max-running", 2))
        while path.stat().st_size <= before + 1500 and process.is_alive():
            time.sleep(0.0005)
        os.kill(process.pid, kill)
        process.join(20)
        assert process.exitcode == status, "was it done before it was killed?"
    text = capfd.readouterr().err
    assert "of 48 requests have results: the same command goes on" in text and "Traceback" not in text
    with path.open("ab") as file:
        file.write(b'{"id":"batch_req_12')  # a kill in the middle of a line
    begun = path.read_bytes()
    assert 3 <= begun.count(b"\n") < 48
    assert run(requests, path, model, "-q") == 3
    assert path.read_bytes().startswith(begun[: begun.rindex(b"\n") + 1])
    assert results(path) == whole


def run_slowly(*arguments):
    """As `run`, in seconds, so that there is time for a kill. It changes the process for good."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    step = Scheduler.step
    Scheduler.step = lambda self: (time.sleep(0.004), step(self))[1]
    return run(*arguments)


def forked(call):
    """A process that exits with the result of a call. It need not import everything again."""
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(call()))
    process.start()
    return process


def test_a_pass_over_the_weights_serves_all_sequences(model, tmp_path, monkeypatch):
    sequences, tokens = 24, 12
    body = {"prompt": "in the end", "max_tokens": tokens, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({**line, "custom_id": str(i)}) + "\n" for i in range(sequences)))
    passes = Counter()

    def counted(name, call):
        def count(*given, **more):
            passes[name] += 1
            return call(*given, **more)

        return count

    with (
        LayerWiseInferenceEngine(model, threads=1) as engine,
        RequestsFile(path) as requests,
        ResultsFile(tmp_path / "out.jsonl", [each.custom_id for each in requests.requests]) as found,
    ):
        for name in ("decode", "run"):
            monkeypatch.setattr(engine.model, name, counted(name, getattr(engine.model, name)))
        limits = batch_limits(engine, sequences)
        assert answer_all(engine, ("tiny",), limits, requests, found) == sequences * tokens
        assert len(found.done) == sequences and not found.failed
    assert tokens - 1 <= passes["decode"] and passes.total() < sequences * tokens / 4, passes


def test_what_is_done_needs_no_model(model, requests, whole, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    assert run(requests, path, model) == 3
    text = capsys.readouterr().err
    assert "Requests answered: 48; " in text and "has all results: 48, 1 of them errors" in text
    before = path.read_bytes()
    assert run(requests, path, tmp_path / "nowhere", "--model-name", "tiny") == 3
    assert path.read_bytes() == before


def test_the_model_is_the_one_that_requests_name(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(model.parent)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    named = {**line, "body": {**line["body"], "model": "tiny"}}
    other = {**line, "custom_id": "b", "body": {**line["body"], "model": "gpt-4o-mini"}}
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def answer(lines, *arguments):
        path.write_text("\n".join(map(json.dumps, lines)))
        out.unlink(missing_ok=True)
        return run(path, out, *arguments), capsys.readouterr().err

    assert answer([named])[0] == 0
    assert json.loads(out.read_text())["response"]["body"]["model"] == "tiny"
    assert answer([line])[0] == 1
    status, text = answer([named, other])
    assert status == 1 and "names 'tiny' (line 1), 'gpt-4o-mini' (line 2), expected one model" in text
    status, text = answer([named, other], "tiny")
    assert status == 1 and "line 2 asks for the model 'gpt-4o-mini'" in text and not out.exists()
    assert answer([named, other], "--model-name", "gpt-4o-mini", "tiny")[0] == 0


def test_what_cannot_work_is_refused(model, requests, tmp_path, capsys):
    def refused(*arguments):
        assert run(*arguments) == 1
        return capsys.readouterr().err

    out = tmp_path / "out.jsonl"
    assert "are the same file" in refused(requests, requests, model)
    assert "No such file" in refused(tmp_path / "none", out, model)
    assert "is not a file" in refused(requests, "/dev/null", model)
    assert "--max-running has value 0" in refused(requests, out, model, "--max-running", "0")
    with pytest.raises(SystemExit) as exit:
        run(requests)
    assert exit.value.code == 2


@pytest.mark.parametrize(
    ("part", "defect", "why"),
    (
        (
            "airllm.serving.engine_thread.EngineThread.is_alive",
            property(lambda self: False),
            "The server ends",
        ),
        ("airllm.engine.model.Model.run", lambda *given, **more: 1 / 0, "ZeroDivisionError"),
    ),
)
def test_a_defect_of_the_engine_is_no_result(
    part, defect, why, model, requests, tmp_path, capsys, monkeypatch
):
    """What it leaves without an answer is for the next run, instead of an error for each request."""
    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(part, defect)
        assert run(requests, out, model, "-q") == 1
    error = capsys.readouterr().err
    assert "requests got no answer (" in error and why in error and "the same command goes on" in error
    assert {status for status, _ in results(out).values()} <= {400}
    assert run(requests, out, model, "-q") in (0, 3)
    assert 500 not in {status for status, _ in results(out).values()}
