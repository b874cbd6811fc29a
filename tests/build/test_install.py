"""airllm installed in each way, in an environment of its own, and used from outside the checkout."""

import re
import sys
import tarfile
from pathlib import Path

import checkouts
import pytest
from installs import PIP, check_cpp_program, pip, use_backend, wheel

from cpp_ext.commands import build_ext, cpp_build, probes


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which nothing has been built."""
    return checkouts.copy(tmp_path_factory.mktemp("install") / "airllm")


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
    find = "import tensor_ops_cpp as t; print(t.__file__)"
    direct = checkouts.run([str(python), "-c", find], tmp_path, PYTHONPATH="")
    assert direct.stdout == f"{checkout}/cpp_ext/tensor_ops_cpp{probes.EXT_SUFFIX}\n"
    check_cpp_program(python, tmp_path, checkout)


def check_beside_the_clone(python: Path, clone: Path) -> None:
    """In the folder that the clone is in, where `airllm` is the clone's name too, and no package."""
    assert clone.name == "airllm" and not (clone / "__init__.py").exists()
    code = "import airllm.cli.commands; from airllm import AutoModel, tensor_ops; print(airllm.__file__)"
    answer = checkouts.run([str(python), "-c", code], clone.parent, PYTHONPATH="")
    assert answer.stdout == f"{clone}/airllm/__init__.py\n", checkouts.output_of(answer)


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
