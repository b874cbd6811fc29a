"""The ops as methods of an object: on the backend it was made for, whatever else the process does."""

import threading

import numpy as np
import pytest
from conftest import assert_agrees

from airllm import tensor_ops
from airllm.backends import (
    CpuBackend,
    KernelBackend,
    available,
    init_backend,
    opened,
    print_support_matrix,
    support_matrix,
)
from airllm.tensor_ops import OPS

X = np.random.default_rng(0).standard_normal((5, 40), np.float32)
W = np.linspace(-1, 1, 40, dtype=np.float32)


@pytest.mark.parametrize("name", available())
def test_every_op_is_a_method(name):
    be = init_backend(name)
    assert be.name() == name and be.is_available() and name in repr(be) and be.device() in repr(be)
    assert set(OPS) < set(dir(be)) and {f"{op}_into" for op in OPS} < set(dir(be))
    assert_agrees(be.rms_norm(X, W, eps=0.1), OPS["rms_norm"].exact(X, W, eps=0.1), np.float32)
    out = np.zeros(5, np.float32)
    assert be.matmul_vec_into(X, W, out) is out
    assert_agrees(out, OPS["matmul_vec"].exact(X, W), np.float32)


def test_it_runs_on_its_backend_alone():
    cpp, python = opened("cpp").module, init_backend("python")
    if cpp is None:
        pytest.skip(opened("cpp").why_not)
    before = cpp.calls()
    with tensor_ops.use_backend("cpp"):
        python.silu(X)
        assert cpp.calls() == before
        init_backend("cpp").silu(X)
    assert cpp.calls() == before + 1


def test_the_forms_in_place():
    be = init_backend()
    x, exact = X.copy(), OPS["rms_norm"].exact(X, W)
    assert be.rmsnorm(x, W) is x
    assert_agrees(x, exact, np.float32)
    x = np.concatenate([X, X])
    assert be.softmax_view(x[::2]).base is x
    assert_agrees(np.ascontiguousarray(x[::2]), OPS["softmax"].exact(np.concatenate([X, X])[::2]), np.float32)
    scores = np.zeros(5, np.float32)
    be.compute_attention_scores(W, X, scores, 0.5)
    assert_agrees(scores, OPS["attention_scores"].exact(W, X, 0.5), np.float32)
    total = np.zeros(40, np.float32)
    be.weighted_sum_rows_into(scores, X, total)
    assert_agrees(total, OPS["weighted_sum_rows"].exact(scores, X), np.float32)


def test_unknown_names_are_told_the_known_ones():
    with pytest.raises(AttributeError, match="KernelBackend has no op 'rms_nrm'; it has: rms_norm, "):
        init_backend("python").rms_nrm  # noqa: B018
    with pytest.raises(ValueError, match=r"abacus.*cuda.*opencl.*cpp.*python"):
        KernelBackend("abacus")


def test_a_cpu_backend_without_its_parts():
    cpp = opened("cpp").module
    if cpp is None:
        pytest.skip(opened("cpp").why_not)
    line = cpp.device()
    plain = CpuBackend(use_simd=False, use_parallel=False)
    assert plain.device() == f"CPU ({cpp.baseline}, 1 thread)"
    assert repr(plain) == f"<CpuBackend(use_simd=False, use_parallel=False): {plain.device()}>"
    assert CpuBackend(use_parallel=False).device() == f"CPU ({cpp.variants()[0]}, 1 thread)"
    three = CpuBackend(num_threads=3)
    assert three.device() == f"CPU ({cpp.variants()[0]}, 3 threads)" and "num_threads=3" in repr(three)
    for wrong in (0, True, 1.5, "2"):
        with pytest.raises(ValueError, match="num_threads has value .*, expected a whole number from 1 on"):
            CpuBackend(num_threads=wrong)
    big = np.tile(X, (2000, 1))
    assert_agrees(plain.softmax(big), OPS["softmax"].exact(big), np.float32)
    assert cpp.device() == line


def test_several_threads_with_a_cpu_backend_each():
    if opened("cpp").module is None:
        pytest.skip(opened("cpp").why_not)
    seen, wrong = [], []

    def work(simd):
        be = CpuBackend(use_simd=simd, use_parallel=simd)
        for _ in range(200):
            seen.append((simd, be.device()))
            if not np.allclose(be.silu(X), X / (1 + np.exp(-X)), atol=1e-6):
                wrong.append(simd)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(set(seen)) == 2  # one device line for each of the two kinds


def test_the_support_matrix_says_what_stands_in(capsys):
    matrix = support_matrix()
    assert set(OPS) <= set(matrix) and set(matrix["silu"].values()) <= {"kernel", "NumPy"}
    for name in available():
        for op, row in matrix.items():
            assert (row[name] != "NumPy") == hasattr(opened(name).module, op)
    print_support_matrix()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(matrix) + 1 and lines[0].split() == available()
    assert lines[1].split()[0] == "rms_norm"
