"""The extension under sanitizers: what counts as a report, and with AIRLLM_TEST_ALL the run itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment import ALL

from tests import sanitized

REPORTS = """\
==1==ERROR: LeakSanitizer: detected memory leaks

Direct leak of 80 byte(s) in 1 object(s) allocated from:
    #0 0x1 in __interceptor_malloc (libasan.so)
    #1 0x2 in PyObject_Malloc Objects/obmalloc.c:1

Direct leak of 90 byte(s) in 1 object(s) allocated from:
    #0 0x1 in operator new(unsigned long) (libasan.so)
    #1 0x2 in pybind11_init (/x/tensor_ops_cpp.so+0x1)
    #2 0x3 in PyInit_tensor_ops_cpp cpp_ext/tensor_ops_cpp.cpp:30

Indirect leak of 100 byte(s) in 1 object(s) allocated from:
    #0 0x1 in operator new(unsigned long) (libasan.so)
    #1 0x2 in make_plan (/x/tensor_ops_cpp.so+0x1)
"""
OVERFLOW = """\
==2==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1
    #0 0x2 in silu (/x/tensor_ops_cpp.so+0x1)
"""
UNDEFINED = "cpp_ext/cpu/x.inl:3:5: runtime error: signed integer overflow\n"

RACES = """\
==================
WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x1 by thread T1:
    #0 memcpy <null> (libtsan.so.2+0x1)
    #1 PyBytes_FromStringAndSize Objects/bytesobject.c:1 (python3+0x1)
==================
==================
WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x1 by thread T1:
    #0 run cpp_ext/cpu/threads/thread_pool.h:1 (tensor_ops_cpp.so+0x1)
==================
"""


@pytest.mark.parametrize(
    ("text", "found"),
    ((REPORTS, ["Indirect leak of 100"]), (OVERFLOW, ["==2==ERROR"]), (UNDEFINED, ["cpp_ext/cpu"]),
     (RACES, ["==================\nWARNING: ThreadSanitizer"]), ("nothing\n", [])),
)  # fmt: skip
def test_reports_that_count(tmp_path, monkeypatch, text, found):
    monkeypatch.setattr(sanitized, "MADE", tmp_path)
    (tmp_path / "address").mkdir()
    (tmp_path / "address" / "report.1").write_text(text)
    reports = sanitized.own_reports("address")
    assert len(reports) == len(found)
    assert all(report.startswith(start) for report, start in zip(reports, found, strict=True))


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """The tests that the command runs, each in a process; what a test makes there is in the dict."""
    ran, outcomes = [], {}

    def run(call, env, **more):
        ran.append(call[-1])
        status, report = outcomes.get(call[-1], (0, ""))
        if report:
            Path(env["ASAN_OPTIONS"].rpartition("log_path=")[2] + ".17").write_text(report)
        return subprocess.CompletedProcess(call, status, stdout="3 passed, 1 skipped in 0.10s\n")

    (tmp_path / "address").mkdir()
    monkeypatch.setattr(sanitized, "MADE", tmp_path)
    monkeypatch.setattr(sanitized, "environment", lambda kind: {})
    monkeypatch.setattr(sanitized.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["sanitized", "address"])
    return ran, outcomes


def test_the_command_runs_each_file_in_a_process_of_its_own(processes, capsys):
    ran, _ = processes
    assert sanitized.main() == 0
    assert ran == list(sanitized.files(sanitized.SANITIZERS["address"].tests)) and len(ran) == len(set(ran))
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [f"{test}: 3 passed, 1 skipped in 0.10s, status 0, no reports" for test in ran]
    assert last == "address sanitizer: no report"


def test_a_file_that_fails_or_has_a_report_stops_no_other_file(processes, capsys):
    ran, outcomes = processes
    first, second, *_, last = sanitized.files(sanitized.SANITIZERS["address"].tests)
    outcomes |= {first: (0, OVERFLOW), last: (1, "")}
    assert sanitized.main() == 1 and ran[-1] == last
    said = capsys.readouterr().out
    assert f"{first}: 3 passed, 1 skipped in 0.10s, status 0, 1 reports" in said and OVERFLOW.strip() in said
    assert f"{second}: 3 passed, 1 skipped in 0.10s, status 0, no reports" in said
    assert said.endswith(f"address sanitizer: FAILED: {first} {last}\n")


@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_what_is_listed_is_there(kind):
    for test in sanitized.files(sanitized.SANITIZERS[kind].tests):
        path, _, name = test.partition("::")
        assert name in (Path(sanitized.ROOT) / path).read_text(encoding="utf-8")


@pytest.mark.skipif(not ALL, reason="compiles for minutes: AIRLLM_TEST_ALL=1, or make sanitize")
@pytest.mark.parametrize("kind", sanitized.SANITIZERS)
def test_the_extension_under_a_sanitizer(kind):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    root = Path(sanitized.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitized", kind],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and f"{kind} sanitizer: no report" in done.stdout, done.stdout + done.stderr
