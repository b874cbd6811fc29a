"""The instruction set avx512_amx: products of many rows by tiles. Skipped where Linux or the CPU lacks it."""

import pytest
from interpreters import python

from airllm.backends import open_backend

NAME = "avx512_amx"
VARIANTS = getattr(open_backend("cpp").module, "variants", list)()
on_amx = pytest.mark.skipif(NAME not in VARIANTS, reason=f"the C++ backend does not run {NAME} here")

# A product of 80 rows on one thread, the caller's, and machine code that reads and sets its tiles.
THREAD = """
import ctypes, mmap, sys, numpy as np, tensor_ops_cpp as c
from tests.support.models import stored
def function(code, *arguments):
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes.fromhex(code))
    made = ctypes.CFUNCTYPE(ctypes.c_uint32, *arguments)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    made.memory = memory
    return made
registers_in_use = function("b901000000 0f01d0 c3")  # xgetbv
set_shapes, get_shapes = (function(code, ctypes.c_char_p) for code in ("c4e2784907 c3", "c4e2794907 c3"))
c.set_num_threads(1)
def multiply(name):
    return c.linear(np.ones((80, 512), np.float32), stored.blocks(name, (48, 512)))
"""


@on_amx
@pytest.mark.parametrize("name", ("q4_k", "q8_0"))
def test_a_thread_has_no_tiles_after_a_product(name):
    """What is in them, Linux would save and load at each switch to another thread."""
    code = f"""{THREAD}
before = registers_in_use() >> 17 & 3
multiply({name!r})
after = registers_in_use() >> 17 & 3
shapes = bytes([1]) + bytes(15) + bytes([64, 0]) + bytes(30) + bytes([16]) + bytes(15)
set_shapes(shapes)
print(before, after, registers_in_use() >> 17 & 1)
"""
    assert python(code, AIRLLM_CPU_ISA=NAME) == ("0 0 1", "")


@on_amx
@pytest.mark.parametrize("name", ("q4_k", "q8_0"))
def test_the_shapes_of_another_library_stay(name):
    """Some libraries, such as ggml, set the shapes of a thread's tiles once and for all."""
    code = f"""{THREAD}
shapes = bytes([1]) + bytes(15) + bytes([48, 0]) + bytes(30) + bytes([9]) + bytes(15)
found = ctypes.create_string_buffer(64)
set_shapes(shapes)
multiply({name!r})
get_shapes(found)
print(found.raw == shapes)
"""
    assert python(code, AIRLLM_CPU_ISA=NAME) == ("True", "")


@on_amx
def test_a_forked_child_multiplies_by_tiles_too():
    code = f"""{THREAD}
import os
expected, read_write = multiply("q4_k"), os.pipe()
if not os.fork():
    same = multiply("q4_k").tobytes() == expected.tobytes()
    os.write(read_write[1], b"same" if same else b"not the same")
    os._exit(0)
print(os.read(read_write[0], 20).decode(), os.wait()[1])
"""
    assert python(code, AIRLLM_CPU_ISA=NAME) == ("same 0", "")


@on_amx
def test_where_linux_refuses_the_tiles_the_next_best_set_runs():
    """A thread that takes signals on a stack of its own, with no room for tiles, is a reason to refuse."""
    code = """
import ctypes, sys
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(6000)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 6000)), None) == 0
import tensor_ops_cpp as c
print(c.simd_level, "avx512_amx" in c.variants(), c.get_optimization_info()["has_avx512_amx"])
"""
    assert python(code, AIRLLM_CPU_ISA="") == (f"{VARIANTS[1]} False False", "")
    assert f"no kernels for '{NAME}'; it has: {VARIANTS[1]}" in python(code, AIRLLM_CPU_ISA=NAME)[1]


PRODUCTS = """
import numpy as np, tensor_ops_cpp as c
from airllm.formats import FORMATS, can_interleave, interleave
from tests.support.models import stored
rng = np.random.default_rng(0)
FEW = (4, 32, 512), (7, 48, 2304), (12, 160, 1536), (13, 80, 256), (15, 16, 256), (16, 48, 768)
SIZES = *FEW, (17, 53, 512), (47, 33, 1280), (100, 144, 512), (530, 32, 256)
wrong, checked = [], 0
for name in FORMATS:
    for rows, n, k in SIZES:
        weight = stored.blocks(name, (n, k))
        x = rng.standard_normal((rows, k)).astype(np.float32)
        for each in [weight] + ([interleave(weight)] if can_interleave(weight) else []):
            for dtype in (np.float32, np.float16):
                by = {isa: c.within(isa, t, c.linear, x.astype(dtype), each) for t, isa in ((2, A), (1, B))}
                checked += 1
                if by[A].tobytes() != by[B].tobytes():
                    wrong.append((name, rows, n, k, type(each).__name__, dtype.__name__))
print(checked > 300, wrong)
"""


@on_amx
def test_tiles_have_the_bits_of_the_set_that_they_extend():
    """For any number of rows and threads; tests of ops compare that set with exact results."""
    code = f"A, B = {NAME!r}, {VARIANTS[1]!r}\n{PRODUCTS}"
    assert python(code) == ("True []", "")
