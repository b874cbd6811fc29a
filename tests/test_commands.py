"""Every command of setup.py and every example of BACKEND_CONFIG.md, run as a user runs them, in copies."""

import json
import os
import re
import shutil
import stat
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import checkouts
import pytest

from cpp_ext.commands import (
    CommandError,
    build_opencl,
    cpp_build,
    cuda_build,
    cuda_probes,
    probes,
    stamps,
    test_capabilities,
)

REQUIRED = os.environ.get("AIRLLM_TEST_REQUIRE", "").split(",")
SETUP = [sys.executable, "-W", "error::DeprecationWarning", "setup.py"]
WITHOUT_PACKAGES = [sys.executable, "-S", "setup.py"]  # -S leaves site-packages out
SHOWN = """Current Backend Configuration:
  Preferred backend: {}
  Force backend: {}
  Priority order: {}

Configuration file: {}
"""


@pytest.fixture
def checkout(tmp_path):
    return checkouts.copy(tmp_path / "checkout")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A checkout with the C++ backend, shared by tests that leave it as it is."""
    return checkouts.built_copy(tmp_path_factory.mktemp("built"))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def settings(checkout):
    return json.loads((checkout / "backend.json").read_text())


# ---- configure_backend ----


def test_show_prints_what_the_document_prints_and_needs_no_package(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "configure_backend", "--show"], checkout)
    assert answer.returncode == 0, checkouts.said(answer)
    assert answer.stdout == SHOWN.format("auto", None, "cuda, opencl, cpp, python", checkout / "backend.json")
    assert answer.stderr == ""


@pytest.mark.parametrize(
    "options, preferred, force, priority",
    [
        (["--backend=cpp"], "cpp", None, "cuda, opencl, cpp, python"),
        (["--backend", "cuda"], "cuda", None, "cuda, opencl, cpp, python"),
        (["--backend=opencl"], "opencl", None, "cuda, opencl, cpp, python"),
        (["--backend=python"], "python", None, "cuda, opencl, cpp, python"),
        (["--backend=numpy"], "python", None, "cuda, opencl, cpp, python"),
        (["--backend=auto"], "auto", None, "cuda, opencl, cpp, python"),
        (["--backend=cuda", "--force"], "cuda", "cuda", "cuda, opencl, cpp, python"),
        (["--priority=opencl,cuda,cpp,python"], "auto", None, "opencl, cuda, cpp, python"),
        (["--backend=auto", "--priority=cpp,cuda, opencl"], "auto", None, "cpp, cuda, opencl"),
        (["--backend=cpp", "--show"], "cpp", None, "cuda, opencl, cpp, python"),
    ],
)
def test_a_change_is_written_and_shown(checkout, options, preferred, force, priority):
    answer = checkouts.run([*SETUP, "configure_backend", *options], checkout)
    assert answer.returncode == 0, checkouts.said(answer)
    assert answer.stdout == SHOWN.format(preferred, force, priority, checkout / "backend.json")
    assert settings(checkout) == {
        "preferred_backend": preferred,
        "backend_priority": priority.split(", "),
        "force_backend": force,
    }


@pytest.mark.parametrize("name", ["auto", "cpp"])
def test_a_backend_without_force_ends_force_mode(checkout, name):
    for options in (["--backend=cuda", "--force"], [f"--backend={name}"]):
        assert checkouts.run([*SETUP, "configure_backend", *options], checkout).returncode == 0
    assert settings(checkout)["force_backend"] is None
    assert settings(checkout)["preferred_backend"] == name


def test_reset_mends_a_broken_file_and_the_error_says_so(checkout):
    (checkout / "backend.json").write_text("{")
    answer = checkouts.run([*SETUP, "configure_backend", "--show"], checkout)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"configure_backend: {checkout / 'backend.json'}:1:2: is not JSON")
    assert "configure_backend --reset" in answer.stderr
    assert checkouts.run([*SETUP, "configure_backend", "--reset"], checkout).returncode == 0
    assert (checkout / "backend.json").read_text() == (checkouts.ROOT / "backend.json").read_text()


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "nothing to do, expected --show, --backend=NAME, --priority=LIST or --reset"),
        (["--force"], "--force needs the name of a backend, such as --backend=cuda --force"),
        (["--backend=auto", "--force"], "--force needs the name of a backend"),
        (["--backend=tpu"], "--backend=tpu: has the unknown backend 'tpu', expected one of: auto, cuda, "),
        (["--backend="], "--backend=: has the unknown backend ''"),
        (["--backend"], "argument --backend: expected one argument"),
        (["--priority=cpp,tpu"], "--priority=cpp,tpu: has the unknown backend 'tpu', expected one of: cuda"),
        (["--priority=cpp,python,cpp"], "--priority=cpp,python,cpp: has 'cpp' twice"),
        (["--priority="], "--priority=: has the unknown backend ''"),
        (["--reset", "--backend=cpp"], "--reset stands alone"),
        (["--back=cpp"], "unrecognized arguments: --back=cpp (options: --help, --show, --backend, --force"),
        (["cpp"], "unrecognized arguments: cpp"),
    ],
)
def test_wrong_options_are_one_message_and_change_nothing(checkout, options, message):
    answer = checkouts.run([*SETUP, "configure_backend", *options], checkout)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"configure_backend: {message}")
    assert "Traceback" not in answer.stderr and answer.stdout == ""
    assert (checkout / "backend.json").read_text() == (checkouts.ROOT / "backend.json").read_text()


def test_the_named_file_is_shown_and_changed(checkout, tmp_path):
    named = {"AIRLLM_CONFIG": str(tmp_path / "named.json")}
    shown = checkouts.run([*SETUP, "configure_backend", "--show"], checkout, **named)
    assert "the file does not exist: these are the defaults" in shown.stderr
    answer = checkouts.run([*SETUP, "configure_backend", "--backend=cpp"], checkout, **named)
    assert answer.stdout.endswith(f"Configuration file: {tmp_path / 'named.json'}\n")
    assert json.loads((tmp_path / "named.json").read_text())["preferred_backend"] == "cpp"
    assert settings(checkout)["preferred_backend"] == "auto"


def test_show_says_when_the_environment_counts_more(checkout):
    answer = checkouts.run([*SETUP, "configure_backend", "--show"], checkout, AIRLLM_BACKEND="python")
    assert answer.returncode == 0
    assert answer.stderr == "(AIRLLM_BACKEND=python is set and counts more)\n"


DEPLOYMENT = """
if [ "$GPU_TYPE" = "nvidia" ]; then
    python setup.py configure_backend --backend=cuda --force
elif [ "$GPU_TYPE" = "amd" ]; then
    python setup.py configure_backend --backend=opencl --force
else
    python setup.py configure_backend --backend=cpp
fi
"""


@pytest.mark.parametrize(
    "kind, preferred, force", [("nvidia", "cuda", "cuda"), ("amd", "opencl", "opencl"), ("", "cpp", None)]
)
def test_the_deployment_script_of_the_document_runs(checkout, kind, preferred, force):
    answer = checkouts.run(DEPLOYMENT, checkout, GPU_TYPE=kind)
    assert answer.returncode == 0, checkouts.said(answer)
    assert (settings(checkout)["preferred_backend"], settings(checkout)["force_backend"]) == (
        preferred,
        force,
    )


def test_a_forced_backend_that_cannot_run_fails_at_import_with_the_remedies(checkout):
    """Nothing is built in this copy."""
    command = "python setup.py configure_backend --backend=cuda --force; python -c 'import airllm.tensor_ops'"
    answer = checkouts.run(command, checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 1
    assert "No module named 'tensor_ops_cuda'" in answer.stderr
    for remedy in ("python setup.py build_cuda", "python setup.py configure_backend --backend=auto"):
        assert remedy in answer.stderr


# ---- the examples of BACKEND_CONFIG.md ----

DOCUMENT = (checkouts.ROOT / "BACKEND_CONFIG.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_every_example_of_backend_config_md_runs_in_its_order(tmp_path):
    """bash and python must succeed, console must answer as printed, json must be a configuration."""
    checkout = checkouts.built_copy(tmp_path / "checkout")
    runners = {"bash": run_bash, "console": run_console, "python": run_python, "json": run_json}
    assert {language for language, _ in BLOCKS} == set(runners)
    for language, text in BLOCKS:
        runners[language](checkout, text)


def run_bash(checkout, text):
    answer = checkouts.run(text, checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 0, f"{text}\n{checkouts.said(answer)}"


def run_console(checkout, text):
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        answer = checkouts.run(command, checkout, PYTHONPATH=str(checkout))
        written = (answer.stdout + answer.stderr).replace(str(checkout), "/path/to")
        assert written == expected, f"{command}\n{checkouts.said(answer)}"


def run_python(checkout, text):
    """A comment behind a print is what it prints."""
    answer = checkouts.run([sys.executable, "-c", text], checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 0, f"{text}\n{checkouts.said(answer)}"
    for expected in re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE):
        assert expected in answer.stdout.splitlines(), f"{text}\n{checkouts.said(answer)}"


def run_json(checkout, text):
    (checkout / "backend.json").write_text(text)
    run_bash(checkout, "python setup.py configure_backend --show; python setup.py configure_backend --reset")


def test_the_error_table_of_backend_config_md_is_true(tmp_path):
    texts = {
        "broken JSON": '{\n  "preferred_backend": "cpp"\n  "force_backend": null\n}',
        "unknown backend": '{\n  "preferred_backend": "cppp"\n}',
        "wrong type": '{\n\n\n\n\n\n  "backend_priority": "cpp"\n}',
        "named twice": '{\n  "backend_priority": [\n    "cpp",\n    "cpp"\n  ]\n}',
        "no device": '{\n  "opencl_device": null\n}',
        "misspelt key": '{\n  "prefered_backend": "cpp"\n}',
    }
    texts["named twice"] = '{\n  "backend_priority": ["python",\n    "openmp",\n    "cpp"\n  ]\n}'
    from airllm.backends import config

    table = dict(re.findall(r"^\| ([\w ]+) \| `(/path/to/backend.json:.*)` \|$", DOCUMENT, re.MULTILINE))
    assert table.keys() == texts.keys()
    for mistake, text in texts.items():
        (tmp_path / "backend.json").write_text(text)
        with pytest.raises(config.ConfigError) as caught:
            config.read(tmp_path / "backend.json")
        assert str(caught.value).replace(str(tmp_path), "/path/to") == table[mistake]


# ---- setuptools around the commands ----


def test_the_commands_are_listed_and_can_be_chained(checkout):
    listed = checkouts.run([*SETUP, "--help-commands"], checkout)
    for name in ("build_ext", "build_cuda", "build_opencl", "test_capabilities", "configure_backend"):
        assert re.search(rf"^  {name} +\w", listed.stdout, re.MULTILINE)
    chain = ["configure_backend", "--backend=cuda", "--force", "configure_backend", "--priority=cpp,python"]
    answer = checkouts.run([*SETUP, *chain[:3], "test_capabilities"], checkout)
    assert answer.returncode == 0, checkouts.said(answer)
    assert settings(checkout)["force_backend"] == "cuda"
    assert "Backend   Can be built" in answer.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["biuld_cuda"], "invalid command 'biuld_cuda'"),
        (["build_ext", "--in"], "option --in not recognized|not a unique prefix"),
        (["build_cuda", "--foo"], "build_cuda: unrecognized arguments: --foo"),
        (["build_opencl", "--foo"], "build_opencl: unrecognized arguments: --foo"),
        (["test_capabilities", "--foo"], "test_capabilities: unrecognized arguments: --foo"),
        (["configure_backend", "--force", "test_capabilities"], "configure_backend: --force needs the name"),
    ],
)
def test_a_wrong_name_or_option_is_an_error(checkout, arguments, message):
    answer = checkouts.run([*SETUP, *arguments], checkout)
    assert answer.returncode not in (0, None) and re.search(message, answer.stderr), checkouts.said(answer)
    assert "Traceback" not in answer.stderr


def test_without_setuptools_the_own_commands_work_and_the_others_name_the_remedy(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "sdist"], checkout)
    assert answer.returncode == 1
    assert answer.stderr.startswith("setup.py: sdist needs setuptools: pip install setuptools")
    answer = checkouts.run([*WITHOUT_PACKAGES, "build_ext", "--inplace"], checkout)
    assert answer.returncode == 1
    assert answer.stderr == (
        "build_ext: tensor_ops_cpp cannot be built here\n  pybind11 is not installed: pip install pybind11\n"
    )


# ---- build_ext ----

PRINT_ISA = (
    "import sys; sys.path.insert(0, {!r}); import tensor_ops_cpp as t, numpy as np; "
    "assert abs(t.silu(np.ones(8, np.float32))[3] - 0.7310586) < 1e-6; print(t.has_simd, t.device())"
)


def import_from(folder):
    answer = checkouts.run([sys.executable, "-c", PRINT_ISA.format(str(folder))], folder.parent)
    assert answer.returncode == 0, checkouts.said(answer)
    return answer.stdout


def test_build_ext_builds_a_module_that_imports_from_its_folder(checkout):
    """Unoptimized and without AVX-512, in a fifth of the time; that CXXFLAGS come last is seen by the way."""
    command, flags = [*SETUP, "build_ext", "--inplace"], "-O0 -DAIRLLM_WITHOUT_AVX512"
    answer = checkouts.run(command, checkout, CXXFLAGS=flags)
    assert answer.returncode == 0, checkouts.said(answer)
    assert re.search(r"-O3 .* -O0 ", answer.stdout)
    import_from(checkout / "cpp_ext")
    again = checkouts.run(command, checkout, CXXFLAGS=flags)
    assert "is up to date" in again.stdout and again.returncode == 0
    os.utime(checkout / "cpp_ext" / "cpu" / "kernels.inl")  # a header counts as a source
    assert not cpp_build.is_newer(
        checkout / "cpp_ext" / f"tensor_ops_cpp{probes.EXT_SUFFIX}",
        [checkout / "cpp_ext" / "cpu" / "kernels.inl"],
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"PATH": "/nowhere"},
            r"no C\+\+ compiler on PATH \(g\+\+, c\+\+, clang\+\+\): apt-get install g\+\+",
        ),
        (
            {"CXX": "/nowhere/g++ -m64"},
            r"CXX=/nowhere/g\+\+ is not on PATH: apt-get install g\+\+, or set CXX",
        ),
        ({"CXXFLAGS": "-include nowhere.h"}, r"failed with exit status 1: .*nowhere.h: No such file"),
    ],
)
def test_a_build_that_cannot_be_says_what_is_missing(checkout, changes, message):
    answer = checkouts.run([*SETUP, "build_ext", "--inplace"], checkout, **changes)
    assert answer.returncode == 1
    assert re.search("build_ext: .*" + message, answer.stderr, re.DOTALL), checkouts.said(answer)
    assert "Traceback" not in answer.stderr
    assert not list((checkout / "cpp_ext").glob("*tensor_ops_cpp*.so*"))


def test_missing_headers_are_named_with_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(CommandError, match=r"Python.h is missing: apt-get install python3-dev"):
        cpp_build.command()


WITHOUT_OPENMP = """case "$*" in *-fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac
exec {} "$@\""""


def test_a_compiler_without_openmp_builds_without_threads_and_says_so(monkeypatch, tmp_path, capsys):
    usual = shutil.which(probes.cxx_command()[0])
    monkeypatch.setenv("CXX", str(script(tmp_path / "cxx", WITHOUT_OPENMP.format(usual))))
    assert "-fopenmp" not in cpp_build.command()
    assert "building without threads: -fopenmp does not compile and link" in capsys.readouterr().err
    monkeypatch.delenv("CXX")
    assert "-fopenmp" in cpp_build.command()


MANUAL = (
    "c++ -O3 {} -shared -std=c++17 -fPIC $(python3 -m pybind11 --includes) "
    "-o tensor_ops_cpp$(python3-config --extension-suffix) tensor_ops_cpp.cpp"
)
# Their -O0 wins: what a target makes a compiler refuse, it refuses in half the time. What -O3 makes it warn
# of, .ci/run looks for in what pip has built.
TARGET = "-mavx2 -mfma" if os.uname().machine == "x86_64" else "-march=armv8-a+simd"
MANUAL_FLAGS = ("-Wall -O0", f"{TARGET} -O0")


def test_the_manual_compiles_give_modules_that_import(tmp_path):
    """In place, without OpenMP, and without a warning; both at once, for each takes long."""
    script(tmp_path / "python3-config", f"echo {probes.EXT_SUFFIX}")  # not every Python has one on PATH
    path = f"{tmp_path}:{checkouts.environment()['PATH']}"
    folders = [checkouts.copy(tmp_path / str(number)) / "cpp_ext" for number in range(len(MANUAL_FLAGS))]
    commands = [MANUAL.format(flags) for flags in MANUAL_FLAGS]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda *call: checkouts.run(*call, PATH=path), commands, folders))
    for folder, answer in zip(folders, answers, strict=True):
        assert answer.returncode == 0 and "warning" not in answer.stderr, checkouts.said(answer)
        assert import_from(folder).startswith("True")


# ---- what is up to date ----

# Answers its version; anything else it "compiles" to a text: how it was called, and the objects it linked.
FAKE_CXX = """case "$*" in *--version*) echo "{version}"; exit;; {refuses}) exit 1;; esac
call="$*"; while [ "$1" != -o ]; do case "$1" in *.o) linked="$linked $1";; esac; shift; done
{{ echo "$call"; [ -z "$linked" ] || cat $linked; }} > "$2"
"""


def fake_cxx(path, version="cxx 1", refuses="-nothing-"):
    path.parent.mkdir(exist_ok=True)
    return script(path, FAKE_CXX.format(version=version, refuses=refuses))


@pytest.fixture
def building(tmp_path, monkeypatch):
    """A C++ compiler, a source and folders of this test's own."""
    for name in ("CPPFLAGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "AIRLLM_CUDA_ARCHS", *cuda_build.NVCC_READS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "kernels.h").touch()
    monkeypatch.setattr(stamps, "FOLDER", tmp_path / "stamps")
    monkeypatch.setattr(cuda_build, "OBJECTS", tmp_path / "objects")
    monkeypatch.setattr(cpp_build, "sources", lambda: [tmp_path / "kernels.h"])
    monkeypatch.setenv("CXX", str(fake_cxx(tmp_path / "cxx")))
    return tmp_path


CHANGES = {
    "flags": lambda folder, set_variable: set_variable("CXXFLAGS", "-mavx2"),
    "linker flags": lambda folder, set_variable: set_variable("LDFLAGS", "-s"),
    "another compiler": lambda folder, set_variable: set_variable("CXX", str(fake_cxx(folder / "b" / "cxx"))),
    "a newer compiler": lambda folder, set_variable: fake_cxx(folder / "cxx", version="cxx 2"),
    "no OpenMP": lambda folder, set_variable: fake_cxx(folder / "cxx", refuses="*-fopenmp*"),
    "an older source": lambda folder, set_variable: os.utime(folder / "kernels.h", (1, 1)),
    "a module by hand": lambda folder, set_variable: next(folder.glob("*.so")).write_text("made by hand"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_build_ext_rebuilds_what_would_come_out_differently(building, monkeypatch, capsys, change):
    def compiles():
        cpp_build.build(building)
        return "is up to date" not in capsys.readouterr().out

    assert (compiles(), compiles()) == (True, False)
    change(building, monkeypatch.setenv)
    assert (compiles(), compiles()) == (True, False)


def test_a_copy_of_a_checkout_keeps_what_is_built(building, monkeypatch, capsys):
    """Also pip's builds, each of which has pybind11 in a folder of its own."""

    def build(checkout):
        monkeypatch.setattr(probes, "CHECKOUT", checkout)
        monkeypatch.setattr(stamps, "FOLDER", checkout / "build" / "stamps")
        monkeypatch.setattr(cpp_build, "sources", lambda: [checkout / "kernels.h"])
        monkeypatch.setattr(cpp_build, "includes", lambda: [f"-I{checkout}-environment/pybind11"])
        cpp_build.build(checkout / "cpp_ext")
        return capsys.readouterr().out

    (building / "checkout").mkdir()
    (building / "kernels.h").rename(building / "checkout" / "kernels.h")
    assert "is up to date" not in build(building / "checkout")
    shutil.copytree(building / "checkout", building / "copy")
    assert "is up to date" in build(building / "copy")


@pytest.mark.parametrize("build", [cpp_build, cuda_build], ids=["cpp", "cuda"])
def test_every_included_file_is_a_source(build):
    """Of the project's own: what is not in the list would not be compiled again after a change."""
    sources = {path.resolve() for path in build.sources()}
    start = [path for path in sources if path.suffix in (".cpp", ".cu")]
    assert start and {path for file in start for path in included(file)} <= sources


def included(file, seen=()):
    found = set()
    for name in re.findall(r'^ *# *include "([^"]+)"', file.read_text(), re.MULTILINE):
        places = [folder / name for folder in (file.parent, probes.CPP_EXT)]
        found |= {place.resolve() for place in places if place.is_file()}
    return found.union(*(included(path, found | set(seen)) for path in found - set(seen)))


# ---- build_cuda ----

FAKE_NVCC = """case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.1";;
  --list-gpu-arch) printf 'compute_75\\ncompute_100\\ncompute_90\\n';;
  --dryrun*) echo '#$ TOP={root}' >&2;;
  *) echo "error: -- unsupported GNU version! gcc versions later than 15 are not supported!" >&2; exit 1;;
esac"""


@pytest.fixture
def toolkit(tmp_path):
    """The folders of a CUDA toolkit whose nvcc only answers questions."""
    root = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda_runtime_api.h", "lib64/libcudart_static.a"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    script(root / "bin" / "nvcc", FAKE_NVCC.format(version="13.0", root=root))
    return root


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"AIRLLM_NVCC": "/nowhere/nvcc"}, "AIRLLM_NVCC=/nowhere/nvcc: there is no program /nowhere/nvcc"),
        (
            {"CUDA_HOME": "/nowhere"},
            "CUDA_HOME=/nowhere: there is no program /nowhere/bin/nvcc: correct or unset",
        ),
        ({"AIRLLM_NVCC": "/bin/false"}, "/bin/false --version fails"),
    ],
)
def test_build_cuda_without_nvcc_says_what_to_do(checkout, changes, message):
    answer = checkouts.run([*SETUP, "build_cuda"], checkout, **changes)
    assert answer.returncode == 1
    assert answer.stderr.startswith("build_cuda: tensor_ops_cuda cannot be built here\n  ")
    assert message in answer.stderr and "Traceback" not in answer.stderr


def test_no_nvcc_anywhere_names_the_toolkit_and_pip(monkeypatch):
    for name in ("AIRLLM_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda_probes, "_nvcc_places", lambda: iter(()))
    with pytest.raises(CommandError, match=r"no nvcc on PATH, .* or pip install nvidia-cuda-nvcc "):
        cuda_build.prerequisites()


def test_build_cuda_asks_nvcc_which_architectures_it_knows(checkout, toolkit):
    answer = checkouts.run([*SETUP, "build_cuda", "--arch=sm_70,9.0"], checkout, CUDA_HOME=str(toolkit))
    assert answer.returncode == 1
    assert answer.stderr == "build_cuda: nvcc does not know architecture 70, known: 75, 90, 100\n"


def test_architectures_by_default_and_by_name(monkeypatch):
    known = ("75", "90", "100")
    monkeypatch.delenv("AIRLLM_CUDA_ARCHS", raising=False)
    assert cuda_build.chosen(None, known) == ["75", "90", "100"]
    monkeypatch.setenv("AIRLLM_CUDA_ARCHS", "90; 100a")
    assert cuda_build.chosen(None, known) == ["90", "100a"]
    assert cuda_build.chosen(["75"], known) == ["75"]
    assert cuda_build.gencode(["75", "90"]) == [
        "-gencode",
        "arch=compute_75,code=sm_75",
        "-gencode",
        "arch=compute_90,code=sm_90",
        "-gencode",
        "arch=compute_90,code=compute_90",
    ]


def test_build_cuda_rebuilds_what_would_come_out_differently(building, toolkit, monkeypatch, capsys):
    """Going back to an architecture takes its object again, and must link it again."""
    text = FAKE_NVCC.format(version="13.0", root=toolkit).replace("  *) echo", "  --refuse) echo")
    script(toolkit / "bin" / "nvcc", f"{text}\n" + FAKE_CXX.format(version="nvcc", refuses="-nothing-"))
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setattr(cuda_build, "sources", lambda: [building / "kernels.h"])

    def compiles(*archs):
        module = cuda_build.build(building, archs).read_text()
        assert {f"sm_{arch}" for arch in archs} == set(re.findall(r"sm_\d+", module))
        return "is up to date" not in capsys.readouterr().out

    assert [compiles("90"), compiles("75"), compiles("90"), compiles("90")] == [True, True, True, False]
    for name in ("NVCC_CCBIN", "NVCC_APPEND_FLAGS", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.setenv(name, "-anything")
        assert (compiles("90"), compiles("90")) == (True, False), name


def test_a_host_compiler_that_cuda_refuses_gets_the_remedy(checkout, toolkit):
    answer = checkouts.run([*SETUP, "build_cuda"], checkout, CUDA_HOME=str(toolkit), CXXFLAGS="-O0")
    assert answer.returncode == 1
    assert re.search(r"build_cuda: .*unsupported GNU version.*\nset NVCC_CCBIN to", answer.stderr)


@pytest.mark.parametrize(
    "version, removed, message",
    [
        ("11.8", "", "is of CUDA 11.8, expected 12.0 or newer"),
        ("13.0", "lib64/libcudart_static.a", "has no libcudart_static.a or no cuda_runtime_api.h"),
    ],
)
def test_a_toolkit_that_lacks_something_is_not_used(monkeypatch, toolkit, version, removed, message):
    script(toolkit / "bin" / "nvcc", FAKE_NVCC.format(version=version, root=toolkit))
    if removed:
        (toolkit / removed).unlink()
    monkeypatch.setenv("AIRLLM_NVCC", str(toolkit / "bin" / "nvcc"))
    with pytest.raises(CommandError, match=message):
        cuda_build.prerequisites()


# ---- build_opencl ----


def has_devices():
    if not probes.opencl() and "opencl" not in REQUIRED:
        pytest.skip(f"build_opencl: {probes.opencl()}")


def test_build_opencl_compiles_every_kernel_for_every_device(checkout):
    has_devices()
    answer = checkouts.run([*SETUP, "build_opencl"], checkout)
    assert answer.returncode == 0, checkouts.said(answer)
    lines = re.findall(r"^compiled +(gpu|cpu) +[\d.]+ s +(\d+) kernels +(.*)$", answer.stdout, re.MULTILINE)
    assert {form for form, _, _ in lines} == {"gpu", "cpu"} and all(int(count) for _, count, _ in lines)
    assert len(lines) == 2 * len(probes.opencl().details)


def test_build_opencl_prints_the_log_of_a_kernel_that_does_not_compile(checkout):
    has_devices()
    with open(checkout / "cpp_ext" / "gpu_kernels" / "cpu_rows.h", "a") as text:
        text.write("\nkernel void broken() { undeclared = 1; }\n")
    answer = checkouts.run([*SETUP, "build_opencl"], checkout)
    assert answer.returncode == 1
    assert re.search(r"^FAILED +cpu ", answer.stdout, re.MULTILINE)
    assert re.search(r"^compiled +gpu ", answer.stdout, re.MULTILINE)
    assert "build_opencl: the kernels do not compile for" in answer.stderr and "undeclared" in answer.stderr


def test_build_opencl_without_pyopencl_says_how_to_get_it(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "build_opencl"], checkout)
    assert answer.returncode == 1 and "Traceback" not in answer.stderr
    assert re.match(r"build_opencl: .*No module named", answer.stderr)
    assert 'pip install -e ".[opencl]"' in answer.stderr and "pocl-opencl-icd" in answer.stderr


def test_build_opencl_without_a_device_says_how_to_get_one(monkeypatch):
    def build_report():
        raise RuntimeError("no OpenCL device")

    monkeypatch.setitem(sys.modules, "tensor_ops_opencl", SimpleNamespace(build_report=build_report))
    with pytest.raises(CommandError, match=r"^no OpenCL device\n.*pip install -e .*pocl-opencl-icd"):
        build_opencl.run(None)


# ---- test_capabilities ----


def test_capabilities_of_this_machine(built):
    answer = checkouts.run([*SETUP, "test_capabilities"], built)
    assert answer.returncode == 0, checkouts.said(answer)
    rows = re.findall(r"^(\w+) +(yes|no) +(yes|no) +(\S.*)$", answer.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["cuda", "mlx", "opencl", "webgpu", "cpp", "python"]
    assert rows[4][1:3] == ("yes", "yes") and rows[5][1:3] == ("yes", "yes")
    for text in ("by cpuid:", "by py-cpuinfo:", "C++ compiler", "Python headers", "pybind11", "OpenMP"):
        assert text in answer.stdout


def test_capabilities_without_any_package_or_tool_says_what_is_missing(checkout, tmp_path):
    python = checkouts.empty_environment(tmp_path / "venv")
    nowhere = {"PATH": "/nowhere", "CUDA_HOME": "/nowhere", "PYTHONPATH": ""}
    answer = checkouts.run([str(python), "setup.py", "test_capabilities"], checkout, **nowhere)
    assert answer.returncode == 0, checkouts.said(answer)
    for text in (
        "by cpuid:      not asked: it takes a C++ compiler",
        "by py-cpuinfo: not asked: pip install py-cpuinfo",
        "no C++ compiler on PATH (g++, c++, clang++): apt-get install g++, or set CXX",
        "pybind11 is not installed: pip install pybind11",
        "there is no program /nowhere/bin/nvcc",
        "No module named 'pyopencl': pip install -e",
        "No module named 'mlx'",
        "NumPy is not installed: pip install numpy",
    ):
        assert text in answer.stdout
    rows = re.findall(r"^(\w+) +(yes|no) +(yes|no)", answer.stdout, re.MULTILINE)
    assert rows == [
        ("cuda", "no", "no"),
        ("mlx", "yes", "no"),
        ("opencl", "no", "no"),
        ("webgpu", "yes", "no"),
        ("cpp", "no", "no"),
        ("python", "yes", "no"),
    ]


def test_a_disagreement_about_the_cpu_is_reported():
    lines = test_capabilities.cpu_lines(probes.Cpu("X", ("avx", "avx2"), ("avx", "fma")))
    assert lines[-1] == "they disagree on avx2, fma: the backend goes by cpuid"
    assert len(test_capabilities.cpu_lines(probes.Cpu("X", ("avx",), ("avx",)))) == 3


def test_an_unbuilt_backend_names_its_command():
    unbuilt = probes.Finding("m", why_not=probes.NOT_BUILT)
    row = test_capabilities.Capability("cpp", (), unbuilt, "python setup.py build_ext --inplace").row()
    assert row == ("cpp", "yes", "no", "it is not built: python setup.py build_ext --inplace")
