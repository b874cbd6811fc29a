"""Which backend runs: named, configured, scoped to a thread, forced; and the reasons of those that do not."""

import asyncio
import inspect
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
import typing
from pathlib import Path

import numpy as np
import pytest

from airllm import extras, tensor_ops, tensor_ops_hybrid
from airllm.backends import available, config, declaration, open_backend, registry
from airllm.tensor_ops import OPS

ROOT = Path(__file__).parents[2]
X = np.ones(8, np.float32)
HAS_CPP = "cpp" in available()


def run(code, **environment):
    """A fresh interpreter; its output and exit status."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    return done.stdout.strip(), done.stderr, done.returncode


def settings(tmp_path, **keys):
    file = tmp_path / "backend.json"
    file.write_text(json.dumps(keys))
    return str(file)


def test_the_name_of_the_active_backend_is_one_that_runs():
    assert tensor_ops.get_backend() in available()
    assert available()[-1] == "python" and open_backend("python").module is None


def test_info_has_the_promised_keys_and_a_reason_for_each_backend_that_does_not_run():
    info = tensor_ops.get_backend_info()
    assert info["backend"] == tensor_ops.get_backend()
    assert list(info["config"]) == ["preferred_backend", "backend_priority", "force_backend"]
    assert info["available_backends"] == available()
    assert set(info["available_backends"]) | set(info["unavailable"]) == set(config.BUILT_IN)
    assert all(len(reason) > 10 for reason in info["unavailable"].values())
    json.dumps(info)


def test_print_backend_info_names_every_backend_and_reason(capsys):
    tensor_ops_hybrid.print_backend_info()
    printed = capsys.readouterr().out
    assert f"Active backend: {tensor_ops.get_backend()}" in printed
    for name in config.BUILT_IN:
        assert f"  {name} " in printed
    for reason in tensor_ops.get_backend_info()["unavailable"].values():
        assert reason in printed


def test_the_hybrid_module_has_the_same_functions():
    for name in tensor_ops.__all__:
        assert getattr(tensor_ops_hybrid, name) is getattr(tensor_ops, name)


def test_a_named_backend_is_the_one_that_runs(fake):
    module = fake("cuda")
    before = module.count
    with tensor_ops.use_backend("cuda") as used:
        tensor_ops.silu(X)
        assert used.device == "a fake device" and tensor_ops.get_backend() == "cuda"
    assert module.count == before + 1
    tensor_ops.silu(X, backend="cuda")
    assert module.count == before + 2
    tensor_ops.silu(X)
    assert module.count == before + 2


def test_an_op_without_a_kernel_runs_its_definition(fake):
    fake("cuda")
    with tensor_ops.use_backend("cuda"):
        np.testing.assert_allclose(tensor_ops.gelu(X), OPS["gelu"].exact(X), rtol=1e-6)


def test_a_backend_counts_as_available_only_after_a_right_answer(fake):
    fake("cuda", silu=lambda x: np.zeros_like(x))
    assert "silu(1) is wrong" in open_backend("cuda").why_not and "cuda" not in available()
    fake("cuda", device=lambda: 1 / 0)
    assert "division by zero" in open_backend("cuda").why_not


def test_a_named_backend_that_cannot_run_raises_with_the_reason_and_remedies(fake):
    fake("cuda", silu=lambda x: np.zeros_like(x))
    for ask in (
        lambda: tensor_ops.use_backend("cuda").__enter__(),
        lambda: tensor_ops.set_backend("cuda"),
        lambda: tensor_ops.silu(X, backend="cuda"),
    ):
        with pytest.raises(ImportError, match=r"(?s)silu\(1\) is wrong.*1\. Build.*build_cuda.*2\. "):
            ask()
    assert tensor_ops.get_backend() != "cuda"


def test_unknown_names_list_the_known_ones():
    for ask in (tensor_ops.set_backend, open_backend, lambda name: tensor_ops.use_backend(name).__enter__()):
        with pytest.raises(ValueError, match=r"abacus.*cuda, rocm, mlx, opencl, webgpu, cpp, python"):
            ask("abacus")


def test_aliases():
    assert open_backend("numpy") is open_backend("python")
    assert open_backend("cpu") is open_backend("openmp") is open_backend("cpp")


def test_use_backend_is_for_one_thread():
    names, inside, leave = [], threading.Event(), threading.Event()

    def other():
        inside.wait(10)
        names.append(tensor_ops.get_backend())
        leave.set()

    usual = tensor_ops.get_backend()
    thread = threading.Thread(target=other)
    thread.start()
    with tensor_ops.use_backend("python"):
        inside.set()
        assert leave.wait(10)
        assert tensor_ops.get_backend() == "python"
    thread.join()
    assert names == [usual] and tensor_ops.get_backend() == usual


def test_use_backend_is_for_one_asyncio_task():
    async def task(name):
        with tensor_ops.use_backend(name):
            await asyncio.sleep(0.01)
            return tensor_ops.get_backend()

    async def both():
        return await asyncio.gather(*map(task, available()))

    assert asyncio.run(both()) == available()


def test_use_backend_nests_and_ends_with_an_error():
    usual = tensor_ops.get_backend()
    with pytest.raises(KeyError), tensor_ops.use_backend("python"):
        with tensor_ops.use_backend(usual):
            assert tensor_ops.get_backend() == usual
        assert tensor_ops.get_backend() == "python"
        raise KeyError
    assert tensor_ops.get_backend() == usual


def test_set_backend_is_for_every_thread_and_auto_undoes_it():
    usual, seen = tensor_ops.get_backend(), []
    tensor_ops.set_backend("python")
    try:
        thread = threading.Thread(target=lambda: seen.append(tensor_ops.get_backend()))
        thread.start()
        thread.join()
    finally:
        tensor_ops.set_backend("auto")
    assert seen == ["python"] and tensor_ops.get_backend() == usual


def test_many_threads_get_the_answer_of_the_backend_they_named():
    errors, stop = [], time.monotonic() + 1

    def work(name, seed):
        x = np.random.default_rng(seed).standard_normal((4, 257), np.float32)
        exact = OPS["softmax"].exact(x)
        with tensor_ops.use_backend(name):
            while time.monotonic() < stop and not errors:
                if tensor_ops.get_backend() != name or np.abs(tensor_ops.softmax(x) - exact).max() > 1e-5:
                    errors.append((name, seed))

    threads = [threading.Thread(target=work, args=(name, i)) for i in range(3) for name in available()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_backend_that_only_gains_when_asked_for_is_passed_over_in_order(fake):
    fake("cuda", only_when_asked=lambda: "its only device is a CPU")
    chosen = registry._choose(registry.config.load())
    assert chosen.backend.name != "cuda" and chosen.passed_over["cuda"] == "its only device is a CPU"


def test_the_first_that_runs_in_order_is_taken(fake, monkeypatch, tmp_path):
    module = fake("cuda")
    monkeypatch.setenv(
        "AIRLLM_CONFIG", settings(tmp_path, backend_priority=["python", "cuda", "cpp", "opencl"])
    )
    assert registry._choose(registry.config.load()).backend.name == "python"
    monkeypatch.setenv("AIRLLM_CONFIG", settings(tmp_path, backend_priority=["cuda", "python"]))
    assert registry._choose(registry.config.load()).backend.module is module


def test_a_preferred_backend_falls_back_with_a_warning(fake, monkeypatch, tmp_path):
    fake("cuda", device=lambda: 1 / 0)
    monkeypatch.setenv(
        "AIRLLM_CONFIG", settings(tmp_path, preferred_backend="cuda", backend_priority=["python"])
    )
    with pytest.warns(UserWarning, match="'cuda' cannot run here, 'python' does: division by zero"):
        assert registry._choose(registry.config.load()).backend.name == "python"


# A machine on which a backend was not built.
WITHOUT_CUDA = """
import sys
class NotBuilt:
    def find_spec(self, name, *rest):
        if name == "tensor_ops_cuda":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotBuilt())
"""


def test_a_forced_backend_that_is_not_built_fails_the_import(tmp_path):
    config = settings(tmp_path, preferred_backend="cuda", force_backend="cuda")
    _, errors, status = run(WITHOUT_CUDA + "from airllm import tensor_ops", AIRLLM_CONFIG=config)
    assert status == 1 and "\nImportError: No module named 'tensor_ops_cuda'\n" in errors
    assert "1. Build the backend: python setup.py build_cuda\n" in errors
    assert f'2. Remove force mode: set "force_backend" to null in {config}' in errors


def test_reload_backend_reads_the_configuration_again(tmp_path):
    code = """
import json, os
from airllm import tensor_ops
print(tensor_ops.get_backend())
json.dump({"preferred_backend": "python"}, open(os.environ["AIRLLM_CONFIG"], "w"))
print(tensor_ops.get_backend(), tensor_ops.reload_backend(), tensor_ops.get_backend())
"""
    printed, errors, status = run(code, AIRLLM_CONFIG=settings(tmp_path, backend_priority=["cpp", "python"]))
    first = "cpp" if HAS_CPP else "python"
    assert status == 0, errors
    assert printed.split() == [first, first, "python", "python"]


def test_the_environment_names_one_backend_strictly_or_an_order():
    code = "from airllm import tensor_ops; print(tensor_ops.get_backend())"
    assert run(code, AIRLLM_BACKEND="python")[0] == "python"
    assert run(code, AIRLLM_BACKEND="numpy")[0] == "python"
    assert run(WITHOUT_CUDA + code, AIRLLM_BACKEND="cuda,python")[0] == "python"
    _, errors, status = run(WITHOUT_CUDA + code, AIRLLM_BACKEND="cuda")
    assert status == 1 and "ImportError: No module named 'tensor_ops_cuda'" in errors
    assert "2. Remove the environment variable AIRLLM_BACKEND" in errors


def test_importing_starts_no_device_and_loads_no_pyopencl():
    code = """
import sys, threading
from airllm import tensor_ops
assert "pyopencl" not in sys.modules or "opencl" == tensor_ops.get_backend(), "pyopencl was loaded"
print(threading.active_count())
"""
    printed, errors, status = run(code)
    assert (printed, status) == ("1", 0), errors


def test_an_op_is_a_function_of_its_module_with_its_text():
    assert pickle.loads(pickle.dumps(tensor_ops.rms_norm)) is tensor_ops.rms_norm
    assert typing.get_type_hints(tensor_ops.rms_norm) == {"eps": float}
    with pytest.raises(TypeError, match="rms_norm: x has dtype <U4") as wrong:
        tensor_ops.rms_norm("text", 1)
    assert "prepared({" in "".join(traceback.format_tb(wrong.tb))  # the line, though it lies in no file


def test_a_kernel_gets_the_arrays_and_whatever_else_was_given(monkeypatch):
    def given(*args, **kwargs):
        return args, kwargs

    with tensor_ops.use_backend("python"):
        monkeypatch.setitem(registry.kernels(), "rms_norm", given)
        assert tensor_ops.rms_norm(1, weight=2) == ((1, 2), {})
        assert tensor_ops.rms_norm(1, 2, 3.0) == ((1, 2), {"eps": 3.0, "out": None})
        assert tensor_ops.rms_norm(1, 2, out=3) == ((1, 2), {"eps": 1e-6, "out": 3})


def test_a_kernel_may_lack_a_parameter_that_has_its_default(monkeypatch):
    def without_eps(x, weight, *, out):
        out[...] = 7
        return out

    x, weight, out = np.ones((2, 8), np.float32), np.ones(8, np.float32), np.empty((2, 8), np.float32)
    with tensor_ops.use_backend("python"):
        monkeypatch.setitem(registry.kernels(), "rms_norm", without_eps)
        assert tensor_ops.rms_norm(x, weight, out=out) is out and (out == 7).all()
        with pytest.raises(TypeError, match="eps"):
            tensor_ops.rms_norm(x, weight, 1e-5, out=out)


def test_signatures_and_documentation_are_those_of_the_declaration():
    assert (
        str(inspect.signature(tensor_ops.rms_norm))
        == "(x, weight, eps: float = 1e-06, *, out=None, backend=None)"
    )
    assert "root-mean-square" in tensor_ops.rms_norm.__doc__


def test_a_declaration_that_cannot_be_is_refused():
    from airllm.ops.op import op

    with pytest.raises(TypeError, match=r"halved: its arrays \['y'\] must be parameters of it"):

        @op(y="...", out="...")
        def halved(x):
            return x / 2

    with pytest.raises(TypeError, match=r"its parameters \['_by'\] must not begin with an underscore"):

        @op(x="...", out="...")
        def halved(x, _by: float = 2):
            return x / _by

    assert "halved" not in OPS


def test_a_declaration_replaces_an_earlier_one(monkeypatch):
    """As when a notebook's cell is run again."""
    from airllm.ops.op import op

    for factor in (2, 20):

        @op(x="...", out="...")
        def scaled(x):
            return x * factor  # noqa: B023

        for name in available():
            assert scaled(X, backend=name)[0] == factor
    del OPS["scaled"]


def test_a_remedy_is_one_that_there_is(monkeypatch):
    """Where airllm was installed there is no setup.py; other backends' remedies are the same."""
    missing = ModuleNotFoundError("No module named 'tensor_ops_cuda'")
    assert registry.reason_of("cuda", missing).endswith(" (python setup.py build_cuda)")
    monkeypatch.setattr(declaration, "CHECKOUT", Path("/nowhere"))
    monkeypatch.setattr(extras, "_CHECKOUT", Path("/nowhere"))
    reasons = {name: registry.reason_of(name, missing) for name in config.BUILT_IN}
    assert not any("setup.py" in reason for reason in reasons.values())
    assert "AIRLLM_WITH_CUDA=1 pip install ." in reasons["cuda"]
    assert reasons["webgpu"].endswith(' (pip install "airllm-tensor-ops[webgpu]")')
