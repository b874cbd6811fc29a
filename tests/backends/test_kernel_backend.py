"""The ops as methods of an object: on the backend it was made for, whatever else the process does."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from accuracy import assert_agrees

from airllm import tensor_ops
from airllm.backends import (
    CpuBackend,
    KernelBackend,
    available,
    init_backend,
    open_backend,
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
    cpp, python = open_backend("cpp").module, init_backend("python")
    if cpp is None:
        pytest.skip(open_backend("cpp").why_not)
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


# The methods of the trait in the document of the backend system, and which of their arguments they change.
TRAIT = {
    "matmul_vec": (("w", "x"), None),
    "matmul_vec_into": (("w", "x", "rows"), "rows"),
    "matmul": (("w", "square"), None),
    "rmsnorm": (("x", "weight", "eps"), "x"),
    "softmax": (("x",), "x"),
    "softmax_view": (("view",), "view"),
    "silu": (("x",), None),
    "apply_rope": (("heads", "cos", "sin"), "heads"),
    "compute_attention_scores": (("x", "w", "rows", "scale"), "rows"),
    "weighted_sum_rows": (("rows", "w", "x"), "x"),
}
EXACT = {
    "matmul_vec": lambda w, x: w @ x,
    "matmul_vec_into": lambda w, x, out: w @ x,
    "matmul": lambda a, b: a @ b,
    "rmsnorm": lambda x, weight, eps: x / np.sqrt((x * x).mean() + eps) * weight,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(),
    "softmax_view": lambda x: np.exp(x) / np.exp(x).sum(),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "apply_rope": lambda x, cos, sin: np.hstack(
        [x[:, :4] * cos - x[:, 4:] * sin, x[:, 4:] * cos + x[:, :4] * sin]
    ),
    "compute_attention_scores": lambda query, keys, scores, scale: keys @ query * scale,
    "weighted_sum_rows": lambda weights, matrix, out: weights @ matrix,
}


def trait_arguments():
    rng = np.random.default_rng(1)
    sizes = {"w": (6, 8), "x": 8, "rows": 6, "square": (8, 8), "weight": 8, "heads": (3, 8)}
    found = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    angles = rng.standard_normal(4)
    found |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    return found | {"view": rng.standard_normal(16, np.float32)[::2], "eps": 1e-5, "scale": 0.25}


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("method", TRAIT)
def test_the_methods_of_the_trait_change_what_it_says_they_change(method, name):
    """Its arguments in its order; what it takes as `&mut` is changed, nothing else is."""
    given, (names, changed) = trait_arguments(), TRAIT[method]
    before = {name: np.copy(value) for name, value in given.items()}
    exact = EXACT[method](*(np.asarray(before[name], np.float64) for name in names))
    result = getattr(init_backend(name), method)(*(given[name] for name in names))
    if changed:
        assert result is given[changed]
    assert_agrees(np.ascontiguousarray(result), exact, np.float32)
    for each in set(names) - {changed}:
        np.testing.assert_array_equal(given[each], before[each])


def test_what_cannot_be_changed_in_place_is_refused():
    be, fixed = init_backend(), X.copy()
    fixed.flags.writeable = False
    for call, op in (
        (be.softmax, "softmax"),
        (be.softmax_view, "softmax"),
        (lambda x: be.rmsnorm(x, W), "rms_norm"),
        (lambda x: be.apply_rope(x, W[:4], W[:4]), "apply_rope"),
    ):
        with pytest.raises(ValueError, match=rf"{op}: x is read-only, .*\({op}_into writes elsewhere\)"):
            call(fixed)
        with pytest.raises(TypeError, match=rf"{op}: x has type list, .*\({op}_into writes elsewhere\)"):
            call(X.tolist())


def test_the_forms_that_leave_x_alone():
    be, out = init_backend(), np.empty_like(X)
    for result in (be.softmax_into(X, out), be.softmax_into(X, None)):
        assert_agrees(result, OPS["softmax"].exact(X), np.float32)
    result = be.apply_rope_into(X, W[:20], W[20:], None)
    assert result is not X
    assert_agrees(result, OPS["apply_rope"].exact(X, W[:20], W[20:]), np.float32)
    assert_agrees(be.weighted_sum_rows(W[:5], X), OPS["weighted_sum_rows"].exact(W[:5], X), np.float32)


def test_is_available_is_static():
    assert KernelBackend.is_available() is True is init_backend().is_available()
    assert CpuBackend.is_available() is ("cpp" in available())


@pytest.mark.parametrize("name", available())
def test_a_backend_can_be_copied(name):
    be = init_backend(name)
    assert be.Tensor1 is be.Tensor2 is np.ndarray
    for made in (copy.copy(be), copy.deepcopy(be), pickle.loads(pickle.dumps(be))):
        assert type(made) is KernelBackend and made.name() == name
        assert_agrees(made.silu(X), OPS["silu"].exact(X), np.float32)


def test_unknown_names_are_told_the_known_ones():
    with pytest.raises(AttributeError, match="KernelBackend has no op 'rms_nrm'; it has: rms_norm, "):
        init_backend("python").rms_nrm  # noqa: B018
    with pytest.raises(ValueError, match=r"abacus.*cuda.*opencl.*cpp.*python"):
        KernelBackend("abacus")


def test_a_cpu_backend_without_its_parts():
    cpp = open_backend("cpp").module
    if cpp is None:
        pytest.skip(open_backend("cpp").why_not)
    line = cpp.device()
    plain = CpuBackend(use_simd=False, use_parallel=False)
    assert plain.device() == f"CPU ({cpp.baseline}, 1 thread)"
    assert repr(plain) == f"<CpuBackend(use_simd=False, use_parallel=False): {plain.device()}>"
    assert CpuBackend(use_parallel=False).device() == f"CPU ({cpp.variants()[0]}, 1 thread)"
    three = CpuBackend(num_threads=3)
    assert three.device() == f"CPU ({cpp.variants()[0]}, 3 threads)" and "num_threads=3" in repr(three)
    for wrong in (0, True, 1.5, "2", 4097):
        with pytest.raises(ValueError, match="num_threads has value .*, expected .* from 1 to 4096"):
            CpuBackend(num_threads=wrong)
    big = np.tile(X, (2000, 1))
    exact = OPS["softmax"].exact(big)
    assert_agrees(plain.softmax(big), exact, np.float32)
    assert cpp.device() == line


def test_the_parts_of_a_cpu_backend_are_read_and_copied():
    if open_backend("cpp").module is None:
        pytest.skip(open_backend("cpp").why_not)
    for options in ((True, True, None), (False, True, 2), (True, False, None)):
        be = copy.deepcopy(CpuBackend(*options))
        assert (be.use_simd, be.use_parallel, be.num_threads) == options
        assert repr(be) == repr(CpuBackend(*options))


def test_an_interrupt_at_any_place_leaves_the_thread_as_it_was():
    """As Ctrl-C at the n-th instruction of Python's in a call, for every n that there is."""
    cpp = open_backend("cpp").module
    if cpp is None:
        pytest.skip(open_backend("cpp").why_not)
    be, n = CpuBackend(use_simd=False, use_parallel=False), 0
    while interrupted_at(n, be.silu, X):
        assert cpp.switch(None, None) == (None, None), f"interrupted at {n}"
        n += 1
    assert n > 20


def interrupted_at(n, function, *args):
    """Whether there was an n-th instruction, at which a KeyboardInterrupt was raised."""
    left = n

    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_several_threads_with_a_cpu_backend_each():
    if open_backend("cpp").module is None:
        pytest.skip(open_backend("cpp").why_not)
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
            assert (row[name] != "NumPy") == hasattr(open_backend(name).module, op)
    print_support_matrix()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(matrix) + 1 and lines[0].split() == available()
    assert lines[1].split()[0] == "rms_norm"
