"""Out of memory, signals, forks, files that change while in use, clocks that jump, several processes."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.backends import tuning_file
from airllm.convert.quantize import quantize
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import tiny_gguf

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and signals as on Linux")
MESSAGES = [{"role": "user", "content": "the thin man"}]


def start(code: str, *arguments: object, **variables: str) -> subprocess.Popen:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}",
        "AIRLLM_TUNING": "off",
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(code: str, *arguments: object, **variables: str) -> tuple[int, str, str]:
    process = start(code, *arguments, **variables)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


# ---- memory ----

# Forks a child for each limit; a child says what came of it, and then, without the limit, the same text.
LIMITED = """
import os, resource, sys
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError

def answer():
    with LayerWiseInferenceEngine(sys.argv[1], backend="cpp") as engine:
        return engine.generate("the thin man", 30)

expected = answer()
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
for room in (0, 2, 4, 8, 16, 32, 64, 256):
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (used + (room << 18), resource.RLIM_INFINITY))
        try:
            what = "text" if answer() == expected else "wrong"
        except (MemoryError, MemoryBudgetError):
            what = "no memory"
        except OSError as error:
            what = "no memory" if error.errno == 12 else repr(error)
        except BaseException as error:
            what = repr(error)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        again = "text" if answer() == expected else "wrong"
        os.write(1, f"{what}, then {again}\\n".encode())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        os.write(1, f"status {status} with {room}\\n".encode())
"""


@linux
def test_memory_that_cannot_be_had_is_an_error_and_no_end(folder):
    pytest.importorskip("tensor_ops_cpp")
    status, out, err = run(LIMITED, folder)
    found = out.splitlines()
    assert status == 0 and len(found) == 8, err
    assert {*found} == {"no memory, then text", "text, then text"}, found


# ---- signals ----


@linux
def test_an_interrupt_at_any_moment_leaves_an_engine_that_goes_on(folder):
    """As Ctrl-C in a notebook: KeyboardInterrupt, and the next text is that of a fresh engine."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with LayerWiseInferenceEngine(folder) as engine:
            expected, times = engine.generate("the thin man", 40), []
            for _ in range(5):
                start = time.perf_counter()
                assert engine.generate("the thin man", 40) == expected
                times.append(time.perf_counter() - start)
            taken, interrupted = min(times), 0  # of one that nothing else delayed
            for i in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, taken * (i + 1) / 60)
                    try:
                        engine.generate("the thin man", 40)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                assert engine.generate("the thin man", 40) == expected
        assert interrupted > 10
    finally:
        signal.signal(signal.SIGALRM, before)


QUANTIZES = """
import sys, time
from airllm.cli.commands import main
import airllm.convert.quantize as convert
write = convert.write_gguf
def slowly(path, architecture, keys, tensors, on_progress):
    def tell(*numbers):
        print("writes", flush=True)
        time.sleep(5)
    write(path, architecture, keys, tensors, tell)
convert.write_gguf = slowly
sys.exit(main(["quantize", sys.argv[1], sys.argv[2], "--format", "q8_0"]))
"""


@linux
@pytest.mark.parametrize(("sent", "status"), ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)))
def test_a_signal_while_a_model_is_written_leaves_no_file_of_its_name(tmp_path, sent, status):
    """SIGINT leaves nothing; SIGTERM ends Python at once, so the partial file stays, with another name."""
    source, target = tiny_gguf.write_gguf("llama3", tmp_path / "source.gguf"), tmp_path / "new.gguf"
    process = start(QUANTIZES, source, target)
    assert process.stdout.readline() == "writes\n", process.stderr.read()
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in err
    left = sorted(path.name for path in tmp_path.iterdir() if path != source)
    assert all(re.fullmatch(r"new\.gguf\..*\.partial", name) for name in left)
    assert len(left) == (0 if sent == signal.SIGINT else 1)
    quantize(source, target, "q8_0")  # what stays is in nobody's way


# ---- forks ----


@linux
def test_a_fork_while_threads_compute(folder):
    """Locks that other threads hold must not be waited for in the child."""
    x, stop = np.ones((400, 400), np.float32), threading.Event()
    with LayerWiseInferenceEngine(folder) as engine:
        expected = engine.generate("the thin man", 8)
        busy = [threading.Thread(target=repeat, args=(stop, tensor_ops.silu, x)) for _ in range(2)]
        busy.append(threading.Thread(target=repeat, args=(stop, engine.forward, [1, 2, 3])))
        for thread in busy:
            thread.start()
        try:
            for _ in range(6):
                if not (child := os.fork()):
                    signal.alarm(20)
                    right = np.allclose(tensor_ops.silu(x), 0.7310586)
                    with LayerWiseInferenceEngine(folder) as own:
                        right &= own.generate("the thin man", 8) == expected
                    os._exit(0 if right else 1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            for thread in busy:
                thread.join()


def repeat(stop: threading.Event, call, *args) -> None:
    while not stop.is_set():
        call(*args)


# ---- files that change ----

CHANGED = """
import sys, os
from airllm.layer_engine import LayerWiseInferenceEngine
with LayerWiseInferenceEngine(sys.argv[1], backend="python") as engine:
    first = engine.forward([1, 2, 3]).tobytes()
    print("open", flush=True)
    sys.stdin.readline()
    print("same" if engine.forward([1, 2, 3]).tobytes() == first else "other")
"""


@linux
def test_a_file_that_is_replaced_by_a_rename_is_used_on(tmp_path):
    path, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    tiny_gguf.write_gguf("llama3", path)
    tiny_gguf.write_gguf("phi3", other)
    process = start(CHANGED, path)
    assert process.stdout.readline() == "open\n", process.stderr.read()
    other.rename(path)
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "same\n"), err


@linux
def test_a_file_that_is_cut_short_ends_the_process_as_documented(tmp_path):
    """A system's error of a map is a signal. README and the engine's help say so."""
    path = tiny_gguf.write_gguf("llama3", tmp_path / "model.gguf")
    process = start(CHANGED, path)
    assert process.stdout.readline() == "open\n", process.stderr.read()
    os.truncate(path, 4096)
    out, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (-signal.SIGBUS, "")
    assert "(SIGBUS)" in LayerWiseInferenceEngine.__doc__ and "(SIGBUS)" in (ROOT / "README.md").read_text()


# ---- clocks ----


def test_a_clock_that_jumps_changes_no_text_and_no_timeout(folder, monkeypatch):
    """What waits or measures asks a clock that never jumps; `created` alone tells the date."""
    httpx = pytest.importorskip("httpx")
    serving = pytest.importorskip("tests.support.servers.serving")
    asked = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    with serving.serve(folder, request_timeout=30) as server, httpx.Client(base_url=server.address) as client:
        expected = client.post("/v1/chat/completions", json=asked).json()["choices"]
        jumps = itertools.cycle([2e9, 1.0, 4e9, 1e9])
        monkeypatch.setattr(time, "time", lambda: next(jumps))
        for _ in range(3):
            answer = client.post("/v1/chat/completions", json=asked, timeout=20)
            assert answer.status_code == 200 and answer.json()["choices"] == expected


def test_the_date_is_asked_for_only_to_tell_it():
    """`time.time()` stands where an answer or a file says when it was made."""
    found = {
        str(path.relative_to(ROOT / "airllm"))
        for path in (ROOT / "airllm").rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(", path.read_text())
    }
    assert found == {"serving/response_answer.py", "serving/service.py"}


# ---- several processes ----

HOLDS = """
import sys
from airllm.layer_engine import LayerWiseInferenceEngine
with LayerWiseInferenceEngine(sys.argv[1], kv_cache_dir=sys.argv[2], backend="python") as engine:
    cache = engine.new_cache("talk")
    engine.forward([1, 2, 3], cache)
    print("open", flush=True)
    sys.stdin.readline()
"""


@linux
def test_two_processes_on_one_cache_and_one_that_is_killed(folder, tmp_path):
    process = start(HOLDS, folder, tmp_path / "kv")
    assert process.stdout.readline() == "open\n", process.stderr.read()
    with LayerWiseInferenceEngine(folder, kv_cache_dir=tmp_path / "kv", backend="python") as engine:
        with pytest.raises(
            ValueError, match="talk.kv is in use, expected a file that no other cache has open"
        ):
            engine.new_cache("talk")
        process.kill()
        process.communicate()
        assert engine.new_cache("talk").tokens == [1, 2, 3]


TUNES = """
import sys
from airllm.backends import tuning_file
from pathlib import Path
point = tuning_file.Point({"x": (1, 2)}, {"cpp": tuning_file.Time(1, 1, 1)})
for i in range(10):
    ops = {f"op_{sys.argv[2]}_{i}": {"float32": (point,)}}
    tuning_file.write(Path(sys.argv[1]), tuning_file.this_machine({"cpp": "x"}), "today", ops)
"""


@linux
def test_processes_that_write_one_tuning_file_lose_nothing_of_each_other(tmp_path):
    path = tmp_path / "tuning.json"
    processes = [start(TUNES, path, i) for i in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len(json.loads(path.read_text())["ops"]) == len(tuning_file.read(path).ops) == 30
    assert os.listdir(tmp_path) == ["tuning.json"]
