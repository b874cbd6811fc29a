"""What the tests of backends for devices share: small inputs of every op, and processes of their own."""

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees

from airllm.tensor_ops import OPS

ROOT = Path(__file__).resolve().parents[3]
SIZES = {
    "batch": (3,),
    "d": 77,
    "r": 2,
    "m": 9,
    "k": 33,
    "n": 21,
    "h": 4,
    "g": 2,
    "t": 5,
    "s": 19,
    "e": 7,
    "v": 9,
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)


def sample(op, dtype, **sizes):
    """The arrays that an op must be given."""
    return OPS[op].sample(np.random.default_rng(3), dtype, **SIZES | sizes)


def sample_optional(op, dtype, **sizes):
    """The arrays that it may be given, by name."""
    return OPS[op].sample_optional(np.random.default_rng(4), dtype, **SIZES | sizes)


def results(found):
    """One result or several."""
    return found if isinstance(found, tuple) else (found,)


def assert_all_agree(found, exact, dtype):
    for a, b in zip(results(found), results(exact), strict=True):
        assert_agrees(a, b, np.dtype(dtype))


def ran(code, **env):
    """Runs code in a process of its own, which must end well; returns what subprocess.run does."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cpp_ext"), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": paths, **env}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def across_a_fork(test):
    """Marks of a test that forks."""
    test = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")(test)


def after_a_fork(call):
    """What a call gives in a forked process, as text: its result, or the message of its RuntimeError."""
    fork = get_context("fork")
    told = fork.SimpleQueue()
    process = fork.Process(target=_tell, args=(call, told))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return told.get()


def _tell(call, told):
    try:
        told.put(str(call()))
    except RuntimeError as error:
        told.put(str(error))
