"""Callers of ops, quantizing, sequences of a model, and a fork, all at once, for `python -m tests.sanitized`.

In a suite without a sanitizer it would show little.
"""

import os
import threading

import numpy as np

from airllm import tensor_ops
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model


def run_at_once(*calls) -> None:
    """Each call in a thread, 30 times; what one raises is raised here."""
    start, failed = threading.Barrier(len(calls)), []

    def repeat(call) -> None:
        try:
            start.wait()
            for _ in range(30):
                call()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_ops_of_many_callers():
    x, w = np.ones((300, 512), np.float32), np.ones((64, 512), np.float32)
    stored = tensor_ops.quantize(w, "q8_0")
    out = [np.empty_like(x) for _ in range(2)]
    calls = [lambda o=o: tensor_ops.silu(x, out=o) for o in out]
    calls += [lambda: tensor_ops.linear(x[:3], stored), lambda: tensor_ops.linear(x, stored)]
    calls += [lambda: tensor_ops.quantize(w, "q4_0"), lambda: tensor_ops.softmax(x)]
    run_at_once(*calls)
    assert all(np.allclose(o, 0.7310586) for o in out)


def test_sequences_of_one_model_and_of_two(tmp_path):
    path = speaking_model.write(tmp_path / "model")
    with (
        LayerWiseInferenceEngine(path, backend="cpp") as one,
        LayerWiseInferenceEngine(path, backend="cpp") as two,
    ):
        expected = one.forward([1, 2, 3])

        def step(engine: LayerWiseInferenceEngine) -> None:
            cache = engine.new_cache()
            engine.forward([1, 2], cache)
            assert np.abs(engine.forward([3], cache) - expected).max() < 0.1 * np.ptp(expected)

        run_at_once(*[lambda e=e: step(e) for e in (one, one, two)], lambda: one.generate("the", 4))


def test_a_fork_between_calls():
    x = np.ones((300, 512), np.float32)
    tensor_ops.silu(x)
    if not (child := os.fork()):
        os._exit(0 if np.allclose(tensor_ops.silu(x), 0.7310586) else 1)
    assert os.waitpid(child, 0)[1] == 0
