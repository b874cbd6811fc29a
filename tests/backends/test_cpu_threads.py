"""The threads of the CPU kernels, and the memory of their results: other threads, forks, limits and ends."""

import os
import sys

import numpy as np
import pytest
from interpreters import python, start_interpreter

from airllm.backends import open_backend


def test_threads_are_counted_set_and_come_from_the_environment(binary):
    code = "import tensor_ops_cpp as c; print(c.num_threads())"
    assert python(code, AIRLLM_NUM_THREADS="1")[0] == "1"
    assert python(code, AIRLLM_NUM_THREADS="")[0] == python(code)[0] != ""
    assert python(code, AIRLLM_NUM_THREADS="4096")[0] == "4096"
    assert python(code, OMP_NUM_THREADS="100000")[0] == "4096"
    module = open_backend("cpp").module
    for wrong in (0, -3, 4097, 100000):
        expected = f"n has value {wrong}, expected a whole number from 1 to 4096"
        with pytest.raises(ValueError, match=expected):
            module.set_num_threads(wrong)
        with pytest.raises(ValueError, match=expected.replace("n has", "threads has")):
            module.switch(None, wrong)
        with pytest.raises(ValueError, match=expected.replace("n has", "threads has")):
            module.within(None, wrong, module.device)
    with pytest.raises(ValueError, match="this CPU has no kernels for 'mmx'"):
        module.switch("mmx", 1)
    assert module.switch(None, None) == (None, None)


def test_a_forked_child_computes(binary):
    """OpenMP's threads are not there after a fork; a child that waited for them would never answer."""
    code = """
import multiprocessing, numpy as np, tensor_ops_cpp as c
x = np.ones((512, 512), np.float32)
c.silu(x)
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.apply_async(c.silu, (x,)).get(60).sum() == c.silu(x).sum())
"""
    assert python(code)[0] == "True"


def test_a_forked_child_may_ask_for_threads(binary):
    code = """
import multiprocessing, numpy as np, tensor_ops_cpp as c
x = np.ones((512, 512), np.float32)
c.silu(x)
def work():
    c.set_num_threads(2)
    return float(c.silu(x).sum())
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.apply_async(work).get(60) == c.silu(x).sum())
"""
    assert python(code)[0] == "True"


LIMITED = """
import os, resource, sys, time, numpy as np, tensor_ops_cpp as c
c.set_num_threads(8)
threads = lambda: len(os.listdir("/proc/self/task"))
x = np.ones((1024, 1024), np.float32)
out = np.empty_like(x)
before = threads()
used = int([line for line in open("/proc/self/status") if line.startswith("VmSize")][0].split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), resource.RLIM_INFINITY))
for _ in range(40):  # more than there are places for callers
    c.silu(x, out=out)
few = threads() - before
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert abs(out - 0.7310586).max() < 1e-6
time.sleep(1.01)
c.silu(x, out=out)
print(few < 7, threads() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and counts of threads as on Linux")
@pytest.mark.parametrize("room", (1 << 20, 20 << 20))  # for none, and for some
def test_an_op_does_without_threads_that_cannot_be_made(room, binary):
    """And has them as soon as they can be."""
    printed, errors = python(LIMITED, room)
    assert printed == "True 7" and not errors, errors


# OpenBLAS may wait for its own threads forever when it is unloaded while it computes, with NumPy alone too.
DAEMON = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import sys, threading, time, numpy as np, tensor_ops_cpp as c
x, out = np.ones((400, 400), np.float32), np.empty((400, 400), np.float32)
calls = {
    "gelu": lambda: c.gelu(x, out=out),
    "matmul": lambda: c.matmul(x, x, out=out),
    "weighted_sum_rows": lambda: c.weighted_sum_rows(x[0], x, out=out[0]),
    "quantize": lambda: c.quantize(x[:, :384].copy(), "q8_0"),
    "within": lambda: c.within(None, 1, c.gelu, x, out=out),
}
def forever(call):
    while True:
        call()
for _ in range(2):
    threading.Thread(target=forever, args=(calls[sys.argv[1]],), daemon=True).start()
time.sleep(0.05)
"""
# The thread keeps the lock until its first op releases it, long after the main thread asked for it.
FIRST_OP = """
import collections, threading, numpy as np, tensor_ops_cpp as c
from itertools import chain, islice, repeat
x, many = np.ones((4, 4), np.float32), 10**7
later = islice(chain(repeat(None, many), [x]), many, None)
threading.Thread(target=collections.deque, args=(map(c.gelu, later),), daemon=True).start()
"""


@pytest.mark.parametrize("call", ("gelu", "matmul", "weighted_sum_rows", "quantize", "within"))
def test_a_daemon_thread_within_an_op_does_not_end_the_program_wrongly(call, binary):
    """Python 3.10 to 3.13 unwind its stack when they end; nothing of that may stop the process."""
    for _ in range(3):
        done = start_interpreter(DAEMON, call)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_thread_within_its_first_op_does_not_end_the_program_wrongly(binary):
    """What is looked up once must not release the lock where a thread cannot be unwound."""
    for _ in range(3):
        done = start_interpreter(FIRST_OP)
        assert (done.returncode, done.stderr) == (0, "")


def test_threads_may_be_the_first_to_quantize_together(binary):
    """What is looked up once must not be waited for with the interpreter's lock in hand."""
    code = """
import sys, threading, numpy as np, tensor_ops_cpp as c
sys.setswitchinterval(1e-6)
all_there = threading.Barrier(8)
def first():
    all_there.wait()
    c.quantize(np.ones((4, 64), np.float32), "q8_0")
threads = [threading.Thread(target=first) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("done")
"""
    assert python(code) == ("done", "")


def test_threads_that_wait_leave_the_processors_alone(binary):
    code = """
import time, numpy as np, tensor_ops_cpp as c
c.set_num_threads(2)
x = np.ones((512, 4096), np.float32)
c.silu(x)
time.sleep(0.1)
before = time.process_time()
time.sleep(0.4)
print(time.process_time() - before)
"""
    printed, errors = python(code, OMP_WAIT_POLICY="active")
    assert float(printed) < 0.1, errors  # of 0.4 seconds of a processor


def test_threads_run_on_the_places_of_openmp(binary):
    if not hasattr(os, "sched_getaffinity") or len(mine := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("needs two processors of Linux's")
    code = """
import os, numpy as np, tensor_ops_cpp as c
c.set_num_threads(2)
before = set(os.listdir("/proc/self/task"))
x = np.ones((512, 4096), np.float32)
for _ in range(20):
    c.silu(x, out=x)
print([sorted(os.sched_getaffinity(int(task))) for task in set(os.listdir("/proc/self/task")) - before])
"""
    places = f"{{{mine[0]}}},{{{mine[1]}}}"
    for policy in ("close", "spread"):
        printed, errors = python(code, OMP_PLACES=places, OMP_PROC_BIND=policy)
        assert printed == str([[mine[1]]]), errors


CHANGED_IDS = """
import threading, numpy as np, tensor_ops_cpp as c
table, ids = np.ones((100, 64), np.float32), np.zeros(200000, np.int64)
out = np.empty((len(ids), 64), np.float32)
go_on = True
def change():
    while go_on:
        ids[-1] = 1 << 40
        ids[-1] = 0
thread = threading.Thread(target=change)
thread.start()
for _ in range(60):
    try:
        c.embedding(ids, table, out=out)
    except ValueError as error:
        assert "embedding: ids has value 1099511627776, expected 0 to 99" in str(error)
go_on = False
thread.join()
print((out == 1).all())
"""


def test_ids_that_another_thread_changes_are_read_once(binary):
    assert python(CHANGED_IDS) == ("True", "")


def test_a_result_too_large_to_keep_drops_no_other(binary):
    module = open_backend("cpp").module
    module.release_memory()
    module.silu(np.ones((1 << 20,), np.float32))
    module.silu(np.ones((600 << 20) // 2, np.float16))
    assert module.release_memory() == 4 << 20


@pytest.mark.parametrize("rows", (40, 1024))  # 160 KB, which malloc may give back; 4 MB, in huge pages
def test_large_results_are_kept_for_the_next_one_and_never_shared(rows, binary):
    module = open_backend("cpp").module
    module.release_memory()
    x = np.full((rows, 1024), 2, np.float32)
    first = module.silu(x)
    address = first.ctypes.data
    second = module.silu(x)
    assert second.ctypes.data != address and first[0, 0] == second[0, 0]
    view = first[1:, ::2]
    del first
    third = module.silu(-x)
    assert third.ctypes.data != address and view[0, 0] == second[0, 0]  # a view keeps the memory
    del view
    assert module.silu(x).ctypes.data == address
    del second, third
    assert module.release_memory() >= x.nbytes and module.release_memory() == 0
