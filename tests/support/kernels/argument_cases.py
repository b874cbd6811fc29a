"""Arrays that tests of ops' arguments share."""

import numpy as np

from airllm.backends import available, open_backend

X = np.random.default_rng(0).standard_normal((6, 10), np.float32)
W = np.linspace(-1, 1, 10, dtype=np.float32)
NATIVE = [name for name in available() if open_backend(name).module]


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array
