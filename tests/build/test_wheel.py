"""The wheel: what it has, and the README's examples run from it, in an environment that has no checkout."""

import doctest
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import checkouts
import gguf
import installs
import numpy as np
import pytest
from documents import blocks, examples
from safetensors.numpy import save_file

import airllm
from cpp_ext.commands import probes
from tests import smoke
from tests.compatibility import environments


@pytest.fixture(scope="module")
def built(sdist, tmp_path_factory):
    """The wheel of the sdist; its compiler gives the module that is compiled of the same sources already."""
    folder = tmp_path_factory.mktemp("wheel")
    return installs.wheel(sdist, folder, **checkouts.compiled_before(folder))


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """An environment in which the wheel is all that was installed."""
    python = checkouts.empty_environment(tmp_path_factory.mktemp("environment") / "venv")
    installs.pip(python, "install", str(built))
    return python


@pytest.fixture(scope="module")
def serving(python, built):
    """The same environment with what text generation and the server need, and OpenAI's client."""
    installs.pip(python, "install", f"{built}[serve]", "openai")
    return python


def test_a_wheel_from_the_sdist_works_in_an_empty_environment(python, tmp_path):
    venv = python.parents[1]
    backend, answer, why_not, where = installs.use_backend(python, tmp_path)
    assert (backend, answer, why_not) == ("cpp", 0.73106, "")
    assert Path(where).is_relative_to(venv)
    assert_remedies_fit(python, tmp_path)
    find = "import airllm.backends.gpu.kernel_text as k; print(k.folder()); print(k.text('gpu', 'rows') > '')"
    text = checkouts.run([str(python), "-c", find], tmp_path, PYTHONPATH="")
    assert text.stdout.splitlines()[1:] == ["True"], checkouts.output_of(text)
    assert Path(text.stdout.splitlines()[0]).is_relative_to(venv)
    installs.check_cpp_program(python, tmp_path, venv)


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


def test_a_wheel_carries_the_modules_and_the_kernel_text_alone(built):
    names = zipfile.ZipFile(built).namelist()
    for place, folder in CARRIED.items():
        files = {f"{place}/{path}" for path in files_below(folder)}
        assert files and files <= set(names), files - set(names)
    package = {path for path in checkouts.files() if path.startswith("airllm/")}
    assert {path for path in package if path.startswith("airllm/serving/page/")}
    assert package <= set(names), package - set(names)
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {
        "airllm",
        "tensor_ops_mlx",
        "tensor_ops_opencl",
        "tensor_ops_webgpu",
        f"tensor_ops_cpp{probes.EXT_SUFFIX}",
    }
    assert {"airllm/py.typed", "airllm/tensor_ops.pyi", "airllm/cpp_ext/cmake/airllm-config.cmake"} <= set(
        names
    )


# Where in a wheel all files of a folder of cpp_ext/ lie, and of the folders inside it.
CARRIED = {
    "tensor_ops_webgpu/kernels": "tensor_ops_webgpu/kernels",
    **{
        f"airllm/cpp_ext/{name}": name
        for name in ("cmake", "cpu", "gpu_kernels", "include", "ops", "program")
    },
}


def files_below(folder: str) -> list[str]:
    tracked = [path for path in checkouts.files() if path.startswith(f"cpp_ext/{folder}/")]
    return [path.removeprefix(f"cpp_ext/{folder}/") for path in tracked]


def test_the_checkout_and_the_sdist_give_the_same_wheel(sdist, tmp_path):
    """Made without a compiler, which takes no time."""
    found = {}
    for name, source in (("sdist", sdist), ("checkout", checkouts.copy(tmp_path / "airllm"))):
        (tmp_path / name).mkdir(exist_ok=True)
        with zipfile.ZipFile(installs.wheel(source, tmp_path / name, PATH="/nowhere")) as archive:
            found[name] = {each.filename: each.CRC for each in archive.infolist()}
    assert found["sdist"] == found["checkout"] and len(found["sdist"]) > 300


def test_a_wheel_says_which_pythons_and_machines_it_is_for(built):
    (tags,) = re.findall(rf"^airllm_tensor_ops-{re.escape(airllm.__version__)}-(.*)\.whl$", built.name)
    version = "cp{}{}".format(*sys.version_info)
    assert tags.startswith(f"{version}-{version}-") and not tags.endswith("-any")
    with zipfile.ZipFile(built) as archive:
        (metadata,) = (
            archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
        )
    assert f"\nVersion: {airllm.__version__}\n" in metadata and "\nRequires-Python: >=3.10\n" in metadata


def test_the_wheel_works_with_the_oldest_packages_that_it_allows(built, tmp_path):
    """On this Python; `python -m tests.compatibility` does the same on each one, and builds it there."""
    extras = [name for name in smoke.EXTRAS if name != "report"]  # without the largest packages
    lines = environments.requirements(Path(sys.executable), "oldest", extras)
    assert {"numpy==1.26.0", "platformdirs==4.0.0"} <= {*lines.splitlines()} or sys.version_info >= (3, 13)
    python = environments.create(tmp_path / "venv", Path(sys.executable), lines)
    environments.install(python, built)
    found = environments.run([python, smoke.__file__, "cpp", "--extras", *extras])
    assert str(tmp_path) in found, found


def test_the_wheel_works_with_the_newest_packages(serving, tmp_path):
    found = environments.run([serving, smoke.__file__, "cpp", "--extras", "serve"])
    assert str(serving.parents[1]) in found, found


# ---- README.md, from the wheel ----

# Lines of README's that are for a clone; tests of their own run them.
FOR_A_CLONE = (
    "python3 -m venv ",
    "pip install -e ",
    "python setup.py ",
    "AIRLLM_BACKEND=python python examples/",
)


def commands() -> list[str]:
    """The lines of README's blocks of bash, comments and continuations taken out."""
    lines = "".join(text for _, text in blocks("README.md", "bash")).replace("\\\n", " ").splitlines()
    found = [re.sub(r"\s+# .*", "", line) for line in lines]
    return [line for line in found if not line.startswith(FOR_A_CLONE)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory, real_file):
    """A folder with the files that README's commands name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "notes.txt").write_text("Birds fly.")
    (folder / "model.gguf").symlink_to(real_file)
    a, b = np.full((2, 576), 1e-3, np.float32), np.full((192, 2), 1e-3, np.float32)
    place = "base_model.model.model.layers.0.self_attn.v_proj.lora_"
    (folder / "folder").mkdir()
    save_file({f"{place}A.weight": a, f"{place}B.weight": b}, folder / "folder" / "adapter_model.safetensors")
    (folder / "folder" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    writer = gguf.GGUFWriter(folder / "poems.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for name, values in (("a", a), ("b", b)):
        writer.add_tensor(f"blk.0.attn_v.weight.lora_{name}", values)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return folder


def test_the_readmes_python_runs_from_the_wheel_and_prints_what_it_says(serving, readers):
    """All examples in one interpreter, in order, as a reader would; `...` stands for any text."""
    found = [(code, printed) for needs, code, printed in examples("README.md") if needs != "server"]
    end = "-- end of an example --"
    program = "\n".join(f"{code}\nprint({end!r}, flush=True)" for code, _ in found)
    done = checkouts.run([str(serving), "-W", "error", "-c", program], readers, PYTHONPATH="")
    assert done.returncode == 0, checkouts.output_of(done)
    for (code, expected), actual in zip(found, done.stdout.split(f"{end}\n"), strict=False):
        same = doctest.OutputChecker().check_output(expected, actual, doctest.ELLIPSIS)
        assert not expected or same, f"{code}prints\n{actual}, README.md says\n{expected}"


def in_wheel(serving: Path, readers: Path, line: str) -> subprocess.CompletedProcess:
    """A line of bash, with the commands of the wheel's environment first on PATH."""
    path = f"{serving.parent}:{checkouts.environment()['PATH']}"
    return checkouts.run(f"exec </dev/null\n{line}", readers, timeout=120, PYTHONPATH="", PATH=path)


OF_A_SERVER = ("airllm serve ", "curl ")


def test_the_readmes_commands_run_from_the_wheel(serving, readers):
    lines = [line for line in commands() if not line.startswith(OF_A_SERVER)]
    assert len(lines) >= 8 and all(re.search("airllm |^echo ", line) for line in lines), lines
    for line in lines:
        answer = in_wheel(serving, readers, line)
        assert answer.returncode == 0, line + checkouts.output_of(answer)
        silent = ("airllm chat", "airllm batch", "echo ")  # nobody says anything to one, others write files
        assert answer.stdout.strip() or any(name in line for name in silent), line
    (result,) = (readers / "results.jsonl").read_text().splitlines()
    assert json.loads(result)["response"]["status_code"] == 200, result


def test_the_readmes_server_answers_its_clients_from_the_wheel(serving, readers):
    """On a free port instead of 8080."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve, curl = (line for line in commands() if line.startswith(OF_A_SERVER))
    command = [str(serving.parent / "airllm"), *serve.split()[1:], "--port", str(port)]
    variables = checkouts.environment(PYTHONPATH="")
    with subprocess.Popen(command, cwd=readers, env=variables, stderr=subprocess.PIPE, text=True) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            answer = in_wheel(serving, readers, curl.replace(":8080", f":{port}"))
            (choice,) = json.loads(answer.stdout)["choices"]
            assert choice["message"]["content"].strip(), answer.stdout
            (code,) = (code for needs, code, _ in examples("README.md") if needs == "server")
            client = [str(serving), "-c", code.replace(":8080", f":{port}")]
            answer = checkouts.run(client, readers, PYTHONPATH="")
            assert answer.returncode == 0 and answer.stdout.strip(), checkouts.output_of(answer)
        finally:
            server.terminate()


def wait_for(address: str, server: subprocess.Popen, seconds: float = 60) -> None:
    """Until the server answers; what it wrote is said if it has ended, or does not answer in time."""
    end = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                raise AssertionError(server.communicate()[1]) from None
            time.sleep(0.05)
