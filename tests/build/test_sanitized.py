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


def test_the_command_runs_the_tests_and_gives_their_status(tmp_path, monkeypatch):
    calls = []

    def run(call, **more):
        calls.append(call)
        return subprocess.CompletedProcess(call, returncode=len(calls) - 1)

    monkeypatch.setattr(sanitized, "MADE", tmp_path)
    monkeypatch.setattr(sanitized, "environment", lambda kind: {})
    monkeypatch.setattr(sanitized.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["sanitized", "address"])
    assert (sanitized.main(), sanitized.main()) == (0, 1)
    assert calls[0][-len(sanitized.SANITIZERS["address"].tests) :] == sanitized.SANITIZERS["address"].tests


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
