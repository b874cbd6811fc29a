"""airllm where Linux's calls are not there: as on Windows (no fork, fcntl, madvise), and as on a Mac."""

import os
import subprocess
import sys

import pytest

from tests.support.models import tiny_models

# Modules of others keep what they are; then airllm is imported, as if on a system without some calls.
PREPARE = """
import mmap, os, sys, types
import asyncio, ctypes, multiprocessing, select, signal, socket, ssl, subprocess, tempfile, uuid
import concurrent.futures, concurrent.futures.process, http.client, logging.handlers, urllib.request
import cpuinfo, ml_dtypes, numpy as np, platformdirs
import gguf, jinja2.sandbox, rich.console, tokenizers, starlette.applications, uvicorn

SYSTEM = {system!r}
for module in ("fcntl", "termios", "resource", "pwd", "grp") if SYSTEM == "win32" else ():
    sys.modules[module] = None
for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate"):
    delattr(os, name)
if SYSTEM == "win32":
    for name in ("fork", "forkpty", "register_at_fork", "sysconf", "getuid", "geteuid", "fchmod"):
        delattr(os, name)
for name in [name for name in dir(mmap) if name.startswith("MADV_")]:
    delattr(mmap, name)

class Map(mmap.mmap):
    def madvise(self, *_):
        raise AssertionError("madvise was called")

locked = []
def locking(descriptor, mode, count):
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 1 << 42  # beyond each byte that is read
    place = os.fstat(descriptor).st_ino
    if place in locked:
        raise PermissionError(13, "Permission denied")
    locked.append(place)

mmap.mmap = Map
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
ctypes.windll = types.SimpleNamespace(kernel32=types.SimpleNamespace(
    GlobalMemoryStatusEx=lambda status: [status[0] == 64 or exit(5), status.__setitem__(1, 8 << 30),
                                         status.__setitem__(2, 6 << 30)]))
sys.platform = SYSTEM
"""
USE = """
import pathlib
from airllm import AutoModel, backends, tensor_ops
from airllm.backends import devices
from airllm.cli import argument_parser
from airllm.memory import kv_cache_file
import airllm.bench.machine_load, airllm.cli.chat.line_editor, airllm.serving.run

devices._lines = lambda path: [] if str(path).startswith("/proc/") else [1 / 0]
total, free = devices.host_memory()
assert total == 8 << 30 if SYSTEM == "win32" else total > 1 << 28, total
folder = pathlib.Path({folder!r})
with AutoModel.from_pretrained({model!r}, backend="python", context=32, kv_cache_dir=folder) as model:
    cache = model.new_cache("talk")
    try:
        model.new_cache("talk")
    except kv_cache_file.CacheFileError as error:
        assert "is in use" in str(error)
    else:
        raise AssertionError("one file for two caches")
    logits = model.forward([1, 2, 3], cache)
    print(SYSTEM, logits.shape, np.isfinite(logits).all(), len(locked))
try:
    AutoModel.from_pretrained({model!r}, backend="python", max_memory="1MB")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(("system", "locks"), (("win32", 1), ("darwin", 0)))
def test_a_model_runs_without_linuxs_calls(system, locks, tmp_path):
    model = str(tiny_models.DATA / "llama3")
    code = PREPARE.replace("{system!r}", repr(system)) + USE.format(folder=str(tmp_path), model=model)
    environment = {**os.environ, "AIRLLM_BACKEND": "python", "AIRLLM_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{system} (80,) True {locks}"
    assert second == "max_memory needs Linux, whose madvise releases parts of a mapped file"
