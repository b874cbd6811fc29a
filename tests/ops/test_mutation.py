"""The test of the tests: extensions that are wrong on purpose must make the suite fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A backend module in Python that computes every op rightly; each mutant then spoils it.
RIGHT = """
import numpy as np
from airllm.tensor_ops import OPS

_calls = 0

def _op(name):
    def run(*args, out=None, **parameters):
        global _calls
        _calls += 1
        given = OPS[name].signature.bind(*args, **parameters).arguments
        arrays = {operand.name: given.get(operand.name) for operand in OPS[name].operands}
        OPS[name].check(list(arrays.values()), out)
        for array, value in arrays.items():
            if isinstance(value, np.ndarray) and not (value.flags.c_contiguous and value.flags.aligned):
                raise ValueError(f"{name}: {array} has strides {value.strides}, expected C-contiguous")
        return OPS[name].define(*args, out=out, **parameters)
    return run

globals().update({name: _op(name) for name in OPS})

def calls(): return _calls
def device(): return "mutant"
def variants(): return ["avx2"]
def select(name): pass
"""
ZEROS = """
def _zeros(*args, out=None, **parameters):
    global _calls
    _calls += 1
    result = np.zeros_like(args[0]) if out is None else out
    result[...] = 0
    return result
"""
MUTANTS = {
    "every op gives zeros": ZEROS + "globals().update(dict.fromkeys(OPS, _zeros))",
    "zeros, but for the availability test": ZEROS
    + "_silu = silu\nglobals().update(dict.fromkeys(OPS, _zeros))\n"
    + "def silu(x, *, out=None): return _silu(x, out=out) if x.shape == (8,) else _zeros(x, out=out)",
    "the last row is not computed": "_softmax = softmax\n"
    "def softmax(x, *, out=None):\n"
    "    r = _softmax(x, out=out)\n    r[-1:] = 0\n    return r",
    "eps is ignored": "_rms_norm = rms_norm\n"
    "def rms_norm(x, weight, eps=1e-6, *, out=None): return _rms_norm(x, weight, out=out)",
    "out is ignored": "_gelu = gelu\ndef gelu(x, *, out=None): return _gelu(x)",
    "kernels are never reached": "def calls(): return 0",
}


SOME = "cpp and (float32 or not float) and (17 or 1000 or eps or masked)"


def run(tmp_path, source, *command):
    (tmp_path / "tensor_ops_cpp.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "AIRLLM_TEST_REQUIRE": "cpp", "AIRLLM_BACKEND": "python"}
    environment["PYTEST_ADDOPTS"] = ""
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def suite(tmp_path, source):
    return run(
        tmp_path,
        source,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/ops/test_ops.py",
        "-k",
        SOME,
    )


def test_a_right_extension_passes(tmp_path):
    done = suite(tmp_path, RIGHT)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("spoil", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_extension_fails_the_suite(spoil, tmp_path):
    done = suite(tmp_path, RIGHT + spoil)
    failed = any(sign in done.stdout for sign in ("1 failed", "never reached a kernel"))
    refused = "silu(1) is wrong" in done.stdout + done.stderr
    assert (done.returncode == 1 and failed) or (done.returncode == 3 and refused), done.stdout + done.stderr


def test_the_extension_tests_fail_for_zeros_too(tmp_path):
    source = RIGHT + MUTANTS["every op gives zeros"]
    done = run(tmp_path, source, "test_cpp_ext.py", "--backend", "cpp")
    assert done.returncode != 0 and "silu(1) is wrong" in done.stdout, done.stdout + done.stderr
