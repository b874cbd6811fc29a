"""The CUDA backend without a GPU: built by nvcc, its machine code looked at, and run in host memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import checkouts
import pytest
from cuda_on_host import build
from environment import REQUIRED

from airllm.backends import registry
from cpp_ext.commands import cuda_probes, probes

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
ELEMENTS = ("silu", "gelu", "gelu_erf", "swiglu", "geglu", "geglu_erf")
ROWS = ("rms_norm", "layer_norm", "add_rms_norm", "softmax", "masked_softmax")
ARCHS = ("75", "90", "120")


@pytest.fixture(scope="module")
def nvcc():
    if reason := build.why_not():
        if "nvcc" in REQUIRED:
            pytest.fail(f"AIRLLM_TEST_REQUIRE names nvcc: {reason}")
        pytest.skip(reason)
    return cuda_probes.toolkit(cuda_probes.nvcc())


# ---- built, and without a driver


@pytest.fixture(scope="module")
def built(nvcc, tmp_path_factory):
    """A checkout with both modules, CUDA's for one architecture; and what the call said, twice."""
    checkout = checkouts.built_copy(tmp_path_factory.mktemp("cuda"))
    options = ["build_ext", "--inplace", "build_cuda", f"--arch={nvcc.archs[0]}"]
    command = [sys.executable, "-W", "error::DeprecationWarning", "setup.py", *options]
    answers = [checkouts.run(command, checkout) for _ in range(2)]
    assert not any(answer.returncode for answer in answers), "\n".join(map(checkouts.output_of, answers))
    return checkout, answers


@pytest.fixture(scope="module")
def extension(built):
    return built[0] / "cpp_ext" / f"tensor_ops_cuda{probes.EXT_SUFFIX}"


def test_build_ext_and_build_cuda_in_one_call(built, extension):
    first, again = built[1]
    assert f"built {extension}" in first.stdout
    assert re.search(r"^it (runs here: |cannot run here: \w)", first.stdout, re.MULTILINE)
    assert again.stdout.count("is up to date") == 2


def python(code, **environment):
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_imports_without_a_driver_and_says_why_nothing_runs(extension):
    code = """
import numpy as np
import tensor_ops_cuda as cuda
info = cuda.get_cuda_info()
assert info["available"] is False and info["devices"] == [] and cuda.calls() == cuda.copies() == 0, info
x = np.ones((2, 2), np.float32)
for call in (cuda.device, lambda: cuda.silu(x), lambda: cuda.matmul(x, x), lambda: cuda.to_device(x)):
    try:
        call()
    except RuntimeError as error:
        assert info["reason"] in str(error), error
    else:
        raise SystemExit("no error")
print(info["reason"], "archs:", info["archs"])
"""
    printed = python(code, PYTHONPATH=str(extension.parent), CUDA_VISIBLE_DEVICES="-1")
    assert re.match(r"no NVIDIA driver is installed|the NVIDIA driver supports|cudaGetDeviceCount", printed)
    assert re.search(r"archs: \d+$", printed.strip())


def test_links_neither_driver_nor_cuda_libraries(extension):
    needed = subprocess.check_output(["readelf", "-d", str(extension)], text=True)
    assert "libstdc++" in needed and not re.search(r"NEEDED.*lib(cuda|cudart|cublas|nv)", needed)


# ---- kernels that are compiled at run time

QUICK = ("rope", "rows", "recurrent", "experts.q4_k", "mixture.q4_k.q6_k", "linear_beside.q4_0.f16.q6_k")


@pytest.fixture(scope="module")
def nvrtc(extension):
    """The module's function, with the real compiler of pip's package or the toolkit. It needs no driver."""
    code = "import tensor_ops_cuda as c\ntry: c.compile('', 'sm_90')\nexcept c.CompileError as e: print(e)"
    said = python(code, PYTHONPATH=str(extension.parent))
    if "was found" in said:
        assert "nvrtc" not in REQUIRED, said
        pytest.skip(said)
    return extension.parent


@pytest.mark.parametrize(("arch", "families"), (("sm_75", QUICK), ("sm_120", QUICK[:1])))
def test_the_shared_text_compiles_without_headers_or_a_toolkit(nvrtc, arch, families):
    code = f"""
import tensor_ops_cuda
from airllm.backends.gpu.kernel_text import text
for family in {families}:
    made = tensor_ops_cuda.compile(text("gpu", family), {arch!r})
    print(family, made[:4] == b"\\x7fELF", len(made))
"""
    printed = python(code, PYTHONPATH=f"{nvrtc}{os.pathsep}{ROOT}").splitlines()
    assert [line.split()[:2] for line in printed] == [[family, "True"] for family in families]


def test_a_gpu_newer_than_the_compiler_gets_code_for_its_driver(nvrtc):
    code = """
import tensor_ops_cuda
from airllm.backends.gpu.kernel_text import text
print(tensor_ops_cuda.compile(text("gpu", "rope"), "sm_999").partition(b".target")[2][:9].decode())
"""
    assert re.match(r" sm_1\d\d", python(code, PYTHONPATH=f"{nvrtc}{os.pathsep}{ROOT}"))


# ---- machine code


@pytest.fixture(scope="module", params=ARCHS)
def entries(request, nvcc, tmp_path_factory):
    """PTX of every kernel by its name."""
    if request.param not in nvcc.archs:
        pytest.skip(f"this nvcc does not know architecture {request.param}")
    target = tmp_path_factory.mktemp("ptx") / "kernels.ptx"
    source = str(ROOT / "cpp_ext" / "cuda" / "launch" / "kernels.cu")
    arch = f"-arch=compute_{request.param}"
    subprocess.run(
        [nvcc.nvcc, "-O3", "-std=c++17", arch, "-ptx", source, "-o", str(target)],
        check=True,
    )
    parts = re.split(r"^\.visible \.entry (\w+)", target.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16"))
@pytest.mark.parametrize("kernel", (*ELEMENTS, *ROWS))
def test_rows_are_read_and_written_16_bytes_at_a_time(entries, kernel, dtype):
    text = entries[f"{kernel}_{dtype}"]
    loads = re.findall(r"ld\.global(?:\.nc)?\.(?:v4\.(?:[bfu]32)|v2\.(?:[bfu]64))", text)
    stores = re.findall(r"st\.global\.(?:v4\.(?:[bfu]32)|v2\.(?:[bfu]64))", text)
    assert len(loads) >= (1 if kernel in ELEMENTS else 2) and stores


@pytest.mark.parametrize("kernel", ROWS)
def test_rows_are_reduced_by_warp_shuffles(entries, kernel):
    for dtype in ("f32", "f16", "bf16"):
        text = entries[f"{kernel}_{dtype}"]
        assert len(re.findall(r"shfl\.sync\.bfly", text)) >= 5 and "bar.sync" in text


def test_every_kernel_is_compiled_for_64_bit_offsets(entries):
    names = [f"{op}_{dtype}" for op in ("silu", "softmax", "matmul_row") for dtype in ("f32", "f16", "bf16")]
    assert set(names) <= set(entries)
    for name in names:
        assert ".param .u64" in entries[name] or ".param .b64" in entries[name]


# ---- in host memory


@pytest.fixture(scope="module")
def on_host(nvcc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_host")
    build.module(folder)
    return folder


def run_on_host(folder, *arguments):
    """pytest with the module of `folder`, in a process of its own."""
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = build.environment(folder)
    answer = subprocess.run(call, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert answer.returncode == 0, answer.stdout[-8000:] + answer.stderr[-4000:]
    assert re.search(r"\d{2,} passed", answer.stdout), answer.stdout


def test_arrays_streams_and_failures_on_host(on_host):
    checks = sorted((TESTS / "cuda_on_host").glob("checks_*.py"))
    run_on_host(on_host, "--noconftest", *map(str, checks))


def test_kernels_on_host(on_host):
    """The table of test_ops.py, on the kernels as fibers: all of it but what takes longest there."""
    slow = "long_sums or 9001 or 4099 or 70_001 or 70001 or large_results or every_float16 or thread"
    slow += " or (attention and (257 or 1000))"
    run_on_host(on_host, str(TESTS / "ops" / "test_ops.py"), "-k", f"cuda:cuda:0 and not ({slow})")


def test_benchmark_says_why_it_cannot_run_here():
    if not registry.open_backend("cuda").why_not:
        pytest.skip("it can")
    call = [sys.executable, str(ROOT / "benchmarks" / "bench_cuda.py")]
    answer = subprocess.run(call, capture_output=True, text=True)
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr.startswith("bench_cuda.py: the CUDA backend cannot run: ")
