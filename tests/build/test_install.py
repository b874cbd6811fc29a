"""airllm installed in each way, in an environment of its own, and used from outside the checkout."""

import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import checkouts
import pytest

from cpp_ext.commands import build_ext, cpp_build, probes

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
USE = """
import json, numpy
from airllm import tensor_ops
answer = float(tensor_ops.silu(numpy.ones(8, numpy.float32))[0])
info = tensor_ops.get_backend_info()
import airllm
print(json.dumps([info["backend"], round(answer, 5), info["unavailable"].get("cpp", ""), airllm.__file__]))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which nothing has been built."""
    return checkouts.copy(tmp_path_factory.mktemp("install") / "airllm")


def pip(python: Path, *arguments: str, **changes: str) -> None:
    """Runs this environment's pip for another one."""
    answer = checkouts.run([*PIP, "--python", str(python), *arguments], python.parent, **changes)
    assert answer.returncode == 0, checkouts.output_of(answer)


def use_backend(python: Path, folder: Path) -> list:
    """Which backend airllm uses, what silu(1) is, why there is no C++ backend, and where the package lies."""
    answer = checkouts.run([str(python), "-W", "error", "-c", USE], folder, PYTHONPATH="")
    assert answer.returncode == 0, checkouts.output_of(answer)
    return json.loads(answer.stdout)


def test_built_in_place_it_is_used_without_an_install(tmp_path):
    checkout = checkouts.built_copy(tmp_path / "checkout")
    backend, answer, why_not, where = use_backend(Path(sys.executable), checkout)
    assert (backend, answer, why_not) == ("cpp", 0.73106, "")
    assert Path(where).is_relative_to(checkout)


def test_an_editable_install_uses_the_checkout(checkout, tmp_path):
    """With build isolation, as the README's command has it."""
    python = checkouts.empty_environment(tmp_path / "venv")
    pip(python, "install", "-e", str(checkout), **checkouts.compiled_before(tmp_path))
    backend, answer, why_not, where = use_backend(python, tmp_path)
    assert (backend, answer, why_not) == ("cpp", 0.73106, "")
    assert Path(where).is_relative_to(checkout)
    check_beside_the_clone(python, checkout)
    direct = checkouts.run([str(python), "-c", "import tensor_ops_cpp as t; print(t.__file__)"], tmp_path)
    assert direct.stdout == f"{checkout}/cpp_ext/tensor_ops_cpp{probes.EXT_SUFFIX}\n"
    check_cpp_program(python, tmp_path, checkout)


def check_beside_the_clone(python: Path, clone: Path) -> None:
    """In the folder that the clone is in, where `airllm` is the clone's name too, and no package."""
    assert clone.name == "airllm" and not (clone / "__init__.py").exists()
    code = "import airllm.cli.commands; from airllm import AutoModel, tensor_ops; print(airllm.__file__)"
    answer = checkouts.run([str(python), "-c", code], clone.parent, PYTHONPATH="")
    assert answer.stdout == f"{clone}/airllm/__init__.py\n", checkouts.output_of(answer)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution of a checkout in which only the note of an earlier install is new."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = checkouts.copy(folder / "checkout")
    build_ext.leave_note(checkout / "cpp_ext", cpp_build.NAME, "no compiler")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(folder), str(checkout)]
    answer = checkouts.run(command, folder)
    assert answer.returncode == 0, checkouts.output_of(answer)
    return next(folder.glob("airllm_tensor_ops-*.tar.gz"))


def wheel(sdist: Path, folder: Path, **changes: str) -> Path:
    answer = checkouts.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist)], folder, **changes
    )
    assert answer.returncode == 0, checkouts.output_of(answer)
    return next(folder.glob("airllm_tensor_ops-*.whl"))


def test_a_wheel_from_the_sdist_works_in_an_empty_environment(sdist, tmp_path):
    built = wheel(sdist, tmp_path, **checkouts.compiled_before(tmp_path))
    python = checkouts.empty_environment(tmp_path / "venv")
    pip(python, "install", str(built))
    backend, answer, why_not, where = use_backend(python, tmp_path)
    assert (backend, answer, why_not) == ("cpp", 0.73106, "")
    assert Path(where).is_relative_to(tmp_path / "venv")
    assert_remedies_fit(python, tmp_path)
    find = "import tensor_ops_opencl.kernel_text as k; print(k.folder()); print(k.text('gpu', 'rows') > '')"
    text = checkouts.run([str(python), "-c", find], tmp_path)
    assert text.stdout.splitlines()[1:] == ["True"], checkouts.output_of(text)
    assert Path(text.stdout.splitlines()[0]).is_relative_to(tmp_path / "venv")
    check_cpp_program(python, tmp_path, tmp_path / "venv")


def assert_remedies_fit(python: Path, folder: Path) -> None:
    """What is to be done for a backend that is not there can be done: a wheel has no setup.py."""
    code = """
from airllm import backends
for name in ("cuda", "opencl"):
    print(backends.get_backend_info(name)["reason"])
try:
    backends.set_backend("cuda")
except ImportError as error:
    print(error)
"""
    answer = checkouts.run([str(python), "-c", code], folder, PYTHONPATH="")
    assert answer.stdout.count("AIRLLM_WITH_CUDA=1 pip install .") == 2, checkouts.output_of(answer)
    assert "setup.py" not in answer.stdout and 'pip install "airllm-tensor-ops[opencl]"' in answer.stdout


def check_cpp_program(python: Path, folder: Path, place: Path) -> None:
    """A C++ program finds the header, and all that the source file of the backends includes, in `place`."""
    flags = checkouts.run([str(python), "-m", "airllm", "cpp-flags"], folder, PYTHONPATH="").stdout.split()
    cmake = checkouts.run([str(python), "-m", "airllm", "cpp-flags", "--cmake-dir"], folder, PYTHONPATH="")
    assert (
        cmake.stdout.startswith(str(place)) and (Path(cmake.stdout.strip()) / "airllm-config.cmake").is_file()
    )
    example = str(checkouts.ROOT / "examples" / "registry.cpp")
    answer = checkouts.run(["g++", "-MM", example, *flags], folder)
    assert answer.returncode == 0, checkouts.output_of(answer)
    ours = [name for name in re.findall(r"\S*cpp_ext/\S+", answer.stdout) if name != flags[-1]]
    assert "kernels.inl" in answer.stdout and flags[-1].startswith(str(place))
    assert all(Path(name).is_relative_to(place) for name in ours), ours


def test_a_wheel_carries_the_modules_and_the_kernel_text_alone(sdist, tmp_path):
    """Made without a compiler, which takes no time; the module then is the note that says why."""
    names = zipfile.ZipFile(wheel(sdist, tmp_path, PATH="/nowhere")).namelist()
    for place, folder in CARRIED.items():
        files = {f"{place}/{path}" for path in files_below(folder)}
        assert files and files <= set(names), files - set(names)
    page = {path for path in checkouts.files() if path.startswith("airllm/serving/page/")}
    assert page and page <= set(names), page - set(names)
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {
        "airllm",
        "tensor_ops_mlx",
        "tensor_ops_opencl",
        "tensor_ops_webgpu",
        "tensor_ops_cpp.py",
    }
    assert {"airllm/py.typed", "airllm/cpp_ext/cmake/airllm-config.cmake"} <= set(names)


# Where in a wheel all files of a folder of cpp_ext/ lie, and of the folders inside it.
CARRIED = {
    "tensor_ops_opencl/gpu_kernels": "gpu_kernels",
    "tensor_ops_webgpu/kernels": "tensor_ops_webgpu/kernels",
    **{f"airllm/cpp_ext/{name}": name for name in ("cmake", "cpu", "include", "ops", "program")},
}


def files_below(folder: str) -> list[str]:
    tracked = [path for path in checkouts.files() if path.startswith(f"cpp_ext/{folder}/")]
    return [path.removeprefix(f"cpp_ext/{folder}/") for path in tracked]


def test_without_a_compiler_the_install_succeeds_and_says_why_there_is_no_cpp(sdist, tmp_path):
    python = checkouts.empty_environment(tmp_path / "venv")
    pip(python, "install", str(wheel(sdist, tmp_path, PATH="/nowhere")))
    backend, answer, why_not, _ = use_backend(python, tmp_path)
    assert (backend, answer) == ("python", 0.73106)
    assert "no C++ compiler on PATH" in why_not and "apt-get install g++" in why_not
    assert "then repeat the pip install" in why_not and "setup.py" not in why_not  # which a wheel has not


def test_airllm_with_cpp_makes_a_missing_compiler_an_error(sdist, tmp_path):
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sdist)]
    answer = checkouts.run(command, tmp_path, PATH="/nowhere", AIRLLM_WITH_CPP="1")
    assert answer.returncode != 0
    assert "no C++ compiler on PATH" in answer.stdout + answer.stderr


def test_airllm_with_cuda_makes_a_missing_nvcc_an_error(sdist, tmp_path):
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sdist)]
    answer = checkouts.run(command, tmp_path, PATH="/nowhere", AIRLLM_WITH_CUDA="1", CUDA_HOME="/nowhere")
    assert answer.returncode != 0
    assert "there is no program /nowhere/bin/nvcc" in answer.stdout + answer.stderr


def test_a_later_build_replaces_the_note(tmp_path, monkeypatch):
    build_ext.leave_note(tmp_path, cpp_build.NAME, "no compiler")
    note = tmp_path / "tensor_ops_cpp.py"
    answer = checkouts.run([sys.executable, str(note)], tmp_path)
    assert re.search(r"^ImportError: no compiler$", answer.stderr, re.MULTILINE)
    monkeypatch.setattr(cpp_build, "calls", lambda: (["touch"], ["touch"]))
    monkeypatch.setattr(cpp_build, "finish", lambda call, target: target.touch())
    cpp_build.build(tmp_path)
    assert not note.exists()


def test_the_sdist_has_what_a_build_needs_and_no_build_products(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("setup.py", "backend.json", "LICENSE", "README.md", "cpp_ext/tensor_ops_cuda.cpp"):
        assert needed in names
    for named in ("BACKEND_GUIDE.md", "tests/conftest.py", "test_cpp_ext.py", "detect_and_benchmark.py"):
        assert named in names
    assert set(checkouts.files()) <= names  # all of a clone's commands work
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o", "tensor_ops_cpp.py"))]
