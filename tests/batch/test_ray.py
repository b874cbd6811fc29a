"""`airllm.ray` under Ray, where that is installed: two actors, of which one is killed while it computes."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from airllm.engine.engine import LayerWiseInferenceEngine

ray = pytest.importorskip("ray")

ROWS, TOKENS = 600, 120


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(model):
    """The text of each prompt, from an engine that serves nobody else."""
    with LayerWiseInferenceEngine(model, threads=1) as engine:
        yield [engine.generate(f"in {i}", TOKENS) for i in range(40)]


def test_the_rows_of_an_actor_that_dies_are_answered_by_another(cluster, model, expected, tmp_path):
    from airllm.ray import Generate

    class Watched(Generate):
        def __init__(self, folder, *given):
            super().__init__(*given)
            (Path(folder) / str(os.getpid())).touch()

        def __call__(self, batch):
            return {**super().__call__(batch), "process": [os.getpid()] * len(batch["id"])}

    killed = []

    def kill_one():
        while len(there := list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        time.sleep(0.3)
        killed.append(int(there[0].name))
        os.kill(killed[0], signal.SIGKILL)

    request = {"max_tokens": TOKENS, "temperature": 0}
    rows = ray.data.from_items(
        [{"id": i, "prompt": f"in {i % 40}"} for i in range(ROWS)], override_num_blocks=60
    )
    rows = rows.map_batches(
        Watched,
        fn_constructor_args=(str(tmp_path), str(model), request),
        batch_size=10,
        num_cpus=0.9,
        compute=ray.data.ActorPoolStrategy(size=2),
        max_restarts=-1,
        max_task_retries=-1,
    )
    killer = threading.Thread(target=kill_one)
    killer.start()
    start = time.monotonic()
    found = sorted(rows.take_all(), key=lambda row: row["id"])
    killer.join()
    seconds, each = time.monotonic() - start, Counter(row["process"] for row in found)
    print(f"\n{ROWS} rows in {seconds:.1f} s, by process {dict(each)}, killed {killed}")
    assert [row["id"] for row in found] == list(range(ROWS))
    assert {row["error"] for row in found} == {None}
    assert [row["text"] for row in found] == [expected[i % 40] for i in range(ROWS)]
    assert len(list(tmp_path.iterdir())) > 2, "nobody took the place of the actor that was killed"


def processes(name):
    """The processes whose titles begin with this."""
    titles = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [int(path.parent.name) for path, title in titles.items() if title.startswith(name.encode())]


def test_requests_to_a_replica_that_dies_are_answered_or_refused(cluster, model, expected):
    from ray import serve

    from airllm.ray import serving_app
    from airllm.serving.options import Options

    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options = Options(names=("tiny",))
    serve.run(serving_app(str(model), options, num_replicas=2, ray_actor_options={"num_cpus": 0.4}))
    address = f"http://127.0.0.1:{port}"

    def ask(i):
        body = {"model": "tiny", "prompt": f"in {i % 40}", "max_tokens": TOKENS, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
        return answer.status_code, answer.text

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, i) for i in range(400)]
        while sum(each.done() for each in answers) < 40:
            time.sleep(0.01)
        assert len(replicas := processes("ray::ServeReplica")) == 2
        os.kill(replicas[0], signal.SIGKILL)
        found = [each.result() for each in answers]
    print(f"\n{Counter(status for status, _ in found)}")
    print({text[:300] for status, text in found if status != 200})
    for i, (status, text) in enumerate(found):
        if status == 200:
            assert httpx.Response(200, text=text).json()["choices"][0]["text"] == expected[i % 40]
        else:
            assert status in (500, 503) and "died" in text.lower()
    assert sum(status == 200 for status, _ in found) > 350
    body = {"prompt": "in 1", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as stream:
        lines = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    pieces = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
    assert lines[-1] == "[DONE]" and len(pieces) > 1 and "".join(pieces) == expected[1]
    assert httpx.get(f"{address}/ready").status_code == 200
    serve.shutdown()
