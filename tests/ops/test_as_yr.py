"""`import airllm as yr`: the calls of a guide to several backends, as it writes them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import airllm as yr
from airllm.backends import registry
from tests.support.models.tiny_models import DATA

ROOT = Path(__file__).parents[2]
MODEL = DATA / "llama3"
HAVE_CPP = not registry.open_backend("cpp").why_not


@pytest.fixture
def one_process(monkeypatch):
    """As where MPI has started this process alone."""
    monkeypatch.setattr("airllm.engine.persistent_kernel.mpi_processes", lambda size, rank: None)


@pytest.fixture
def without_cuda(monkeypatch):
    """As on a machine that has no GPU of NVIDIA's."""
    monkeypatch.setitem(registry._opened, "cuda", registry.Backend("cuda", why_not="no CUDA device here"))


def test_what_there_is(capsys, without_cuda):
    backends = yr.get_available_backends()
    assert "python" in backends
    assert not yr.is_backend_available("cuda") and yr.is_backend_available("python")
    assert yr.get_default_backend() in backends
    info = yr.get_backend_info("cuda")
    assert info["reason"] == "no CUDA device here" and info.get("compute_capability", 0) == 0
    assert yr.get_backend_info() == yr.backends.get_backend_info()
    yr.list_backends(verbose=True)
    assert "✗ cuda: CUDA (CUDA)\n    Error: no CUDA device here\n" in capsys.readouterr().out


def test_a_backend_by_name_by_fallback_and_by_default(without_cuda):
    with pytest.raises(ValueError, match="no CUDA device here"):
        yr.PersistentKernel(mode="decode", backend="cuda", world_size=1, mpi_rank=0, model=MODEL)
    ypk = yr.PersistentKernel(
        mode="decode", backend="cuda", fallback_backends=["nki", "cpu", "numpy"], world_size=1, mpi_rank=0,
        model=MODEL,
    )  # fmt: skip
    assert ypk.backend == ("cpp" if HAVE_CPP else "python")
    try:
        yr.set_default_backend("numpy")
        assert yr.PersistentKernel(mode="decode", world_size=1, mpi_rank=0, model=MODEL).backend == "python"
    finally:
        yr.set_default_backend("auto")


@pytest.mark.skipif(not HAVE_CPP, reason="the C++ backend is not built")
def test_as_many_workers_as_there_are_cores():
    assert yr.is_backend_available("cpu")
    num_cores = yr.get_backend_info("cpu").get("compute_units", 0)
    ypk = yr.PersistentKernel(mode="decode", backend="cpu", num_workers=num_cores, model=MODEL)
    assert f"{num_cores} thread" in ypk.compile().plan


def benchmark_backend(backend_name, times):
    """Calls of a compiled kernel, in which nothing fails; None where the backend does not run."""
    if not yr.is_backend_available(backend_name):
        return None
    ypk = yr.PersistentKernel(mode="decode", backend=backend_name, model=MODEL)
    ypk.compile()
    return [ypk().shape for _ in range(times)]


def test_every_backend_that_runs_is_called_again_and_again(without_cuda):
    vocabulary = yr.PersistentKernel(model=MODEL, backend="python")().shape
    assert benchmark_backend("cuda", 3) is None
    for backend in yr.get_available_backends():
        times = 100 if backend in ("cpp", "python") else 2  # a device's kernels are compiled first
        assert benchmark_backend(backend, times) == [vocabulary] * times


def test_nothing_that_was_asked_for_runs(without_cuda):
    with pytest.raises(ValueError, match="(?s)no backend of cuda, nki runs here.*cuda: no CUDA device here"):
        yr.PersistentKernel(mode="decode", backend="cuda", fallback_backends=["nki"], model=MODEL)


def test_pages_for_the_memory_of_a_device_that_is_not_there(without_cuda):
    """Its memory is 0 bytes, and that there is no device the reason, not that 0 is no number of pages."""
    max_memory = yr.get_backend_info("cuda").get("max_memory", 0)
    assert yr.get_backend_info("cuda").get("max_shared_memory", 0) == 0
    with pytest.raises(yr.BackendUnavailable, match="no CUDA device here"):
        yr.PersistentKernel(
            mode="decode", backend="cuda", max_num_pages=max_memory // (4096 * 2), model=MODEL
        )
    with pytest.raises(ValueError, match="max_num_pages has value 0"):
        yr.PersistentKernel(mode="decode", backend="python", max_num_pages=0, model=MODEL)


@pytest.mark.parametrize("num_devices", (yr.get_backend_info("python").get("device_count", 1), 2))
def test_a_kernel_for_each_device(num_devices, one_process):
    kernels = []
    for device_id in range(num_devices):
        ypk = yr.PersistentKernel(
            mode="decode", backend="python", world_size=num_devices, mpi_rank=device_id, model=MODEL
        )
        kernels.append(ypk)
    alone = yr.PersistentKernel(mode="decode", backend="python", model=MODEL)
    for token in (3, 1, 4):
        wanted = alone.step(token)
        for ypk in kernels:
            assert abs(ypk.step(token) - wanted).max() < 1e-3


# ------------------------------------------------------------------------------------------------ the package


@pytest.mark.parametrize("package", ("airllm", "airllm.backends"))
def test_programs_that_read_types_find_what_programs_that_run_find(package):
    """The names are said twice: as imports for the former, as a table for the latter."""
    module = sys.modules[package]
    (block,) = (
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imported = {alias.asname: node.module for node in block.body for alias in node.names}
    assert imported and imported == {
        name: module if module.startswith("airllm.") else f"airllm.backends.{module}"
        for name, module in module._MODULE_OF.items()
    }
    assert set(imported) <= set(dir(module)) and all(hasattr(module, name) for name in imported)


def test_the_import_stays_cheap():
    code = "import sys, airllm; print({'numpy', 'airllm.backends', 'airllm.tensor_ops'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
