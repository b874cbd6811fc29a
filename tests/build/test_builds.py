"""The commands of setup.py that build: what they compile, when they do it again, and what they need."""

import os
import re
import shutil
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor

import checkouts
import pytest

from cpp_ext.commands import (
    CommandError,
    cpp_build,
    cuda_build,
    cuda_probes,
    probes,
    stamps,
)

# ---- build_ext ----

PRINT_ISA = (
    "import sys; sys.path.insert(0, {!r}); import tensor_ops_cpp as t, numpy as np; "
    "assert abs(t.silu(np.ones(8, np.float32))[3] - 0.7310586) < 1e-6; print(t.has_simd, t.device())"
)


def import_from(folder):
    answer = checkouts.run([sys.executable, "-c", PRINT_ISA.format(str(folder))], folder.parent)
    assert answer.returncode == 0, checkouts.output_of(answer)
    return answer.stdout


def test_build_ext_builds_a_module_that_imports_from_its_folder(checkout):
    """Unoptimized and without AVX-512, in a fifth of the time; that CXXFLAGS come last is seen by the way."""
    command, flags = [*checkouts.SETUP, "build_ext", "--inplace"], "-O0 -DAIRLLM_WITHOUT_AVX512"
    answer = checkouts.run(command, checkout, CXXFLAGS=flags)
    assert answer.returncode == 0, checkouts.output_of(answer)
    assert re.search(r"-O3 .* -O0 ", answer.stdout)
    import_from(checkout / "cpp_ext")
    again = checkouts.run(command, checkout, CXXFLAGS=flags)
    assert "is up to date" in again.stdout and again.returncode == 0
    os.utime(checkout / "cpp_ext" / "cpu" / "targets" / "kernels.inl")  # a header counts as a source
    assert not cpp_build.is_newer(
        checkout / "cpp_ext" / f"tensor_ops_cpp{probes.EXT_SUFFIX}",
        [checkout / "cpp_ext" / "cpu" / "targets" / "kernels.inl"],
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
    answer = checkouts.run([*checkouts.SETUP, "build_ext", "--inplace"], checkout, **changes)
    assert answer.returncode == 1
    assert re.search("build_ext: .*" + message, answer.stderr, re.DOTALL), checkouts.output_of(answer)
    assert "Traceback" not in answer.stderr
    assert not list((checkout / "cpp_ext").glob("*tensor_ops_cpp*.so*"))


def test_missing_headers_are_named_with_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(CommandError, match=r"Python.h is missing: apt-get install python3-dev"):
        cpp_build.calls()


WITHOUT_OPENMP = """case "$*" in *-fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac
exec {} "$@\""""


def test_a_compiler_without_openmp_builds_without_it_and_says_so(monkeypatch, tmp_path, capsys):
    usual = shutil.which(probes.cxx_command()[0])
    monkeypatch.setenv("CXX", str(checkouts.script(tmp_path / "cxx", WITHOUT_OPENMP.format(usual))))
    assert all("-fopenmp" not in call for call in cpp_build.calls())
    assert (
        "building without OpenMP, whose OMP_PLACES is ignored: -fopenmp does not compile and link"
        in capsys.readouterr().err
    )
    monkeypatch.delenv("CXX")
    assert all("-fopenmp" in call for call in cpp_build.calls())
    monkeypatch.setenv("AIRLLM_WITH_OPENMP", "0")
    assert all("-fopenmp" not in call for call in cpp_build.calls()) and not capsys.readouterr().err


MANUAL = (
    "c++ -O3 {} -shared -std=c++17 -fPIC $(python3 -m pybind11 --includes) "
    "-o tensor_ops_cpp$(python3-config --extension-suffix) tensor_ops_cpp.cpp"
)
# Their -O0 wins: what a target makes a compiler refuse, it refuses in half the time. What -O3 makes it warn
# of, and AVX-512 without a target, .ci/run looks for in what pip has built.
MANUAL_FLAGS = ("-Wall -O0 -DAIRLLM_WITHOUT_AVX512", "{target} -O0")


def target():
    """Options of the manual call for a set that this CPU has: what is compiled is imported."""
    if os.uname().machine != "x86_64":
        return "-march=armv8-a+simd"
    return "-mavx2 -mfma" if "avx2" in (probes.cpu().by_cpuid or ()) else "-msse2"


def test_the_manual_compiles_give_modules_that_import(tmp_path):
    """In place, without OpenMP, and without a warning; both at once, for each takes long."""
    # Not every Python has one on PATH.
    checkouts.script(tmp_path / "python3-config", f"echo {probes.EXT_SUFFIX}")
    path = f"{tmp_path}:{checkouts.environment()['PATH']}"
    folders = [checkouts.copy(tmp_path / str(number)) / "cpp_ext" for number in range(len(MANUAL_FLAGS))]
    commands = [MANUAL.format(flags.format(target=target())) for flags in MANUAL_FLAGS]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda *call: checkouts.run(*call, PATH=path), commands, folders))
    for folder, answer in zip(folders, answers, strict=True):
        assert answer.returncode == 0 and "warning" not in answer.stderr, checkouts.output_of(answer)
        assert import_from(folder).startswith("True")


# ---- what is up to date ----

# Answers its version; anything else it "compiles" to a text: how it was called, and the objects it linked.
FAKE_CXX = """case "$*" in *--version*) echo "{version}"; exit;; {refuses}) exit 1;; esac
call="$*"; while [ "$1" != -o ]; do case "$1" in *.o) linked="$linked $1";; esac; shift; done
{{ echo "$call"; [ -z "$linked" ] || cat $linked; }} > "$2"
"""


def fake_cxx(path, version="cxx 1", refuses="-nothing-"):
    path.parent.mkdir(exist_ok=True)
    return checkouts.script(path, FAKE_CXX.format(version=version, refuses=refuses))


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


def test_no_file_is_compiled_after_one_that_failed(monkeypatch, tmp_path):
    first, second, *_ = map(str, cpp_build.SOURCES)
    begun = []

    def finish(call, target):
        begun.append(call[-1])
        if call[-1] == first:
            time.sleep(0.3)
        else:
            raise CommandError("no")

    monkeypatch.setattr(cpp_build, "finish", finish)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(CommandError, match="^no$"):
        cpp_build.compile_sources(["cxx"], tmp_path)
    assert sorted(begun) == sorted([first, second])


def test_a_copy_of_a_checkout_keeps_what_is_built(building, monkeypatch, capsys):
    """Also pip's builds, each of which has pybind11 in a folder of its own."""

    def build(checkout):
        monkeypatch.setattr(probes, "CHECKOUT", checkout)
        monkeypatch.setattr(stamps, "FOLDER", checkout / "build" / "stamps")
        monkeypatch.setattr(cpp_build, "sources", lambda: [checkout / "kernels.h"])
        monkeypatch.setattr(cpp_build, "includes", lambda _: [f"-I{checkout}-environment/pybind11"])
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
    assert start and {path for file in start for path in included_files(file)} <= sources


def included_files(file, seen=()):
    found = set()
    for name in re.findall(r'^ *# *include "([^"]+)"', file.read_text(), re.MULTILINE):
        places = [folder / name for folder in (file.parent, probes.CPP_EXT)]
        found |= {place.resolve() for place in places if place.is_file()}
    return found.union(*(included_files(path, found | set(seen)) for path in found - set(seen)))


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
    checkouts.script(root / "bin" / "nvcc", FAKE_NVCC.format(version="13.0", root=root))
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
    answer = checkouts.run([*checkouts.SETUP, "build_cuda"], checkout, **changes)
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
    answer = checkouts.run(
        [*checkouts.SETUP, "build_cuda", "--arch=sm_70,9.0"], checkout, CUDA_HOME=str(toolkit)
    )
    assert answer.returncode == 1
    assert answer.stderr == "build_cuda: nvcc does not know architecture 70, known: 75, 90, 100\n"


def test_architectures_by_default_and_by_name(monkeypatch):
    known = ("75", "90", "100")
    monkeypatch.delenv("AIRLLM_CUDA_ARCHS", raising=False)
    assert cuda_build.choose_architectures(None, known) == ["75", "90", "100"]
    monkeypatch.setenv("AIRLLM_CUDA_ARCHS", "90; 100a")
    assert cuda_build.choose_architectures(None, known) == ["90", "100a"]
    assert cuda_build.choose_architectures(["75"], known) == ["75"]
    assert cuda_build.gencode(["75", "90"]) == [
        "-gencode",
        "arch=compute_75,code=sm_75",
        "-gencode",
        "arch=compute_90,code=sm_90",
        "-gencode",
        "arch=compute_75,code=compute_75",
        "-gencode",
        "arch=compute_90,code=compute_90",
    ]
    assert cuda_build.gencode(["90"])[2:] == ["-gencode", "arch=compute_90,code=compute_90"]


def test_build_cuda_rebuilds_what_would_come_out_differently(building, toolkit, monkeypatch, capsys):
    """Going back to an architecture takes its object again, and must link it again."""
    text = FAKE_NVCC.format(version="13.0", root=toolkit).replace("  *) echo", "  --refuse) echo")
    checkouts.script(
        toolkit / "bin" / "nvcc", f"{text}\n" + FAKE_CXX.format(version="nvcc", refuses="-nothing-")
    )
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
    answer = checkouts.run([*checkouts.SETUP, "build_cuda"], checkout, CUDA_HOME=str(toolkit), CXXFLAGS="-O0")
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
    checkouts.script(toolkit / "bin" / "nvcc", FAKE_NVCC.format(version=version, root=toolkit))
    if removed:
        (toolkit / removed).unlink()
    monkeypatch.setenv("AIRLLM_NVCC", str(toolkit / "bin" / "nvcc"))
    with pytest.raises(CommandError, match=message):
        cuda_build.prerequisites()
