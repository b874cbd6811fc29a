"""Every kernel under oclgrind, which sees data races, accesses out of bounds, reads of what was never written
and barriers that not all reach, where a device computes on in silence. It ends well even then: its log tells.

The kernels run in a process of their own, this file's main program, as oclgrind is an OpenCL driver.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from airllm.backends.gpu.kernel_text import FAMILIES

FORMATS = ("f32", "q4_0", "q6_k")  # of experts: floats, blocks that a CPU reads as vectors, and others
MIXTURES = ("f32.f32", "q8_0.q4_0", "q6_k.q4_0")  # of experts and a shared expert: as in expert_cases.py
SPARE = {"linear_experts_q4_0"}  # on a CPU, for rows that are not whole vectors
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1e-2}
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"
HEAD = "__kernel void planted(__global const float* x, __global float* y, int n) { int i = get_local_id(0);"
PLANTED = {  # a mistake of each kind, and the word that oclgrind has for it
    "race": ("race", f"{HEAD} __local float s[1]; s[0] = x[i]; y[i] = s[0]; }}"),
    "out of bounds": ("Invalid write", f"{HEAD} y[i + 1] = x[i]; }}"),
    "uninitialized": (
        "Uninitialized",
        f"{HEAD} __local float s[64]; if (i > 3) s[i] = x[i]; {BARRIER} y[i] = s[i] > 0; }}",
    ),
    "divergence": ("divergence", f"{HEAD} if (i < 32) {BARRIER} y[i] = x[i]; }}"),
    "none": ("", f"{HEAD} __local float s[64]; s[i] = x[i]; {BARRIER} y[i] = s[63 - i]; }}"),
}

# ---- in the test ----


def driver() -> Path | None:
    """oclgrind's OpenCL driver, near its command."""
    if (command := shutil.which("oclgrind")) is None:
        return None
    prefix = Path(command).resolve().parents[1]
    folders = [f for pattern in ("lib*", "lib*/*", "lib*/*/oclgrind") for f in prefix.glob(pattern)]
    return next((f for folder in folders if (f := folder / "liboclgrind-rt-icd.so").exists()), None)


@pytest.fixture(scope="module")
def icd() -> Path:
    required = "oclgrind" in os.environ.get("AIRLLM_TEST_REQUIRE", "").split(",")
    reason = None if driver() else "oclgrind is not installed (Debian: apt-get install oclgrind)"
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        reason = f"oclgrind needs pyopencl: {error}"
    if reason:
        (pytest.fail if required else pytest.skip)(reason)
    found = driver()
    assert found
    return found


def run_checked(icd: Path, tmp_path: Path, *arguments: str) -> tuple[dict, str]:
    """Runs this file's main program under oclgrind; returns what it told, and oclgrind's log."""
    log = tmp_path / "oclgrind.log"
    env = {
        **os.environ,
        "OCL_ICD_VENDORS": str(icd),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_UNINITIALIZED": "1",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_MAX_ERRORS": "20",
        "PYOPENCL_NO_CACHE": "1",
        "POCL_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cpp_ext"), *filter(None, sys.path)]),
    }
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    "family",
    (
        *FAMILIES,
        *(f"experts.{name}" for name in FORMATS),
        *(f"{kind}.{name}" for kind in ("mixture", "linear_beside") for name in MIXTURES),
        "linear_beside.q8_0.q4_0.q6_k",
        "latent_append.f32.f32",
        "latent_append.q8_0.q4_0",
    ),
)
@pytest.mark.parametrize("form", ["gpu", "cpu"])
def test_every_kernel_is_clean(form, family, icd, tmp_path):
    told, log = run_checked(icd, tmp_path, form, family)
    assert log == ""
    assert told["wrong"] == []
    existing = told["existing"]
    of_formats = any(name in family for name in ("experts", "mixture", "linear_beside", "latent"))
    assert set(existing) - set(told["launched"]) <= SPARE and len(existing) >= (1 if of_formats else 3)


@pytest.mark.parametrize("family", ("linear_merged.f32.f32", "linear_merged.q8_0.q8_0"))
def test_every_kernel_of_gpus_alone_is_clean(family, icd, tmp_path):
    told, log = run_checked(icd, tmp_path, "gpu", family)
    assert log == ""
    assert told["wrong"] == []
    assert told["existing"] == told["launched"]


@pytest.mark.parametrize("mistake", PLANTED)
def test_mistakes_are_found(mistake, icd, tmp_path):
    _, log = run_checked(icd, tmp_path, "planted", mistake)
    word = PLANTED[mistake][0]
    assert word in log and bool(word) == bool(log)


# ---- under oclgrind ----


def device():
    import pyopencl as cl

    platform = next(platform for platform in cl.get_platforms() if "oclgrind" in platform.name.lower())
    return platform.get_devices()[0]


def run_planted(mistake: str) -> dict:
    import pyopencl as cl

    context = cl.Context([device()])
    queue = cl.CommandQueue(context)
    x = np.ones(64, np.float32)
    buffers = [cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x) for _ in range(2)]
    program = cl.Program(context, PLANTED[mistake][1]).build(options=["-cl-opt-disable"])
    cl.Kernel(program, "planted")(queue, (64,), (64,), *buffers, np.int32(64))
    queue.finish()
    return {}


def run_form(form: str, family: str) -> dict:
    """Launches every kernel of a family on small arrays; which were launched, exist, and were wrong."""
    import pyopencl as cl

    from tensor_ops_opencl import engine

    engine.OPTIONS = (
        "-cl-std=CL1.2",
        "-cl-opt-disable",
    )  # oclgrind knows not all that LLVM's optimizer makes
    context = cl.Context([device()])
    queue, program = cl.CommandQueue(context), engine.Program(context, context.devices[0], form)
    launched, wrong = set(), []
    for case, plan in plan_kernels(form, family):
        launched |= {launch.kernel for launch in plan.launches}
        if not run_case(program, queue, case, plan):
            wrong.append(str(case))
    existing = [kernel.function_name for kernel in program.build(family).all_kernels()]
    return {"launched": sorted(launched), "existing": sorted(existing), "wrong": wrong}


def plan_kernels(form: str, family: str):
    """The cases that launch kernels of a family, with their plans."""
    from expert_cases import expert_cases
    from kernel_cases import Case, cases
    from latent_cases import latent_cases
    from recurrent_cases import recurrent_cases
    from tensor_cases import tensor_cases

    from airllm.backends.gpu.launches import Call, dense_plan, plan_of

    if family == "elements":
        for dtype in (np.float32, np.float16, np.int64, np.bool_):
            x = np.arange(2 * 3 * 70).reshape(2, 3, 70).astype(dtype).transpose(1, 0, 2)[:, :, :65]
            yield Case("dense_copy", {"x": x}, {"out": x.astype(np.float64)}), dense_plan(x, form, 1)
    of_arrays = *tensor_cases(form), *expert_cases(form), *recurrent_cases(form), *latent_cases(form)
    for of, case, plan in of_arrays:
        if of == family:
            yield case, plan
    for case in cases(form):
        shape = next(iter(case.exact.values())).shape
        plan = plan_of(Call(case.op, case.arrays, case.parameters, shape, form, case.compute_units))
        if plan.launches[0].family == family:
            yield case, plan


KEPT: list = []  # oclgrind takes a buffer at the address of a freed one for what that one was


def run_case(program, queue, case, plan):
    """Launches half the work-groups that there is work for: they must go on to more of it."""
    import pyopencl as cl

    from airllm.backends.device.ops import memory_of
    from tensor_ops_opencl.host_arrays import _bytes

    def hold(array):
        return cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=_bytes(memory_of(array)))

    results = {name: np.empty(exact.shape, dtype_of(exact, case)) for name, exact in case.exact.items()}
    buffers = {name: hold(array) for name, array in case.arrays.items() if array is not None}
    sizes = {**{name: out.nbytes for name, out in results.items()}, **plan.scratch}
    buffers |= {name: cl.Buffer(queue.context, 0, size) for name, size in sizes.items()}
    KEPT.extend(buffers.values())
    for launch in plan.launches:
        launch = dataclasses.replace(launch, groups=(launch.groups + 1) // 2)
        program.launch(queue, launch, buffers)
    for name, out in results.items():
        cl.enqueue_copy(queue, out.view(np.uint8), buffers[name])
    return all(is_near(out, case.exact[name]) for name, out in results.items())


def dtype_of(exact, case):
    return exact.dtype if exact.dtype.kind in "iu" else case.dtype


def is_near(out, exact):
    allowed = TOLERANCE.get(out.dtype, 0) * np.abs(exact).max(axis=-1, keepdims=True)
    return bool((np.abs(out.astype(np.float64) - exact) <= allowed).all())


if __name__ == "__main__":
    print(json.dumps(run_planted(sys.argv[2]) if sys.argv[1] == "planted" else run_form(*sys.argv[1:])))
