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

ROOT = Path(__file__).resolve().parents[1]
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
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
# Lengths that fill no pack, one, or a work-group and a bit.
LENGTHS = (1, 5, 8, 19, 150)
# Batch, m, n, k, and the compute units that lead to the large tile (0) or another kernel (many): few rows,
# sizes that fill no tile, quads that need no guard, a second slice of k, a second block of k, a
# second tile. A large tile takes seconds, so not every dtype has each of them.
ROWS = ((1, 1, 3, 5, 1000), (2, 2, 70, 9, 1000), (1, 4, 64, 3, 1000))
CPU_BLOCKS = (
    (1, 1, 3, 300, 1000),
    (1, 5, 6, 300, 1000),
    (2, 7, 17, 18, 1000),
    (1, 66, 3, 5, 1000),
    (1, 250, 16, 2, 1000),
)
MATRICES: dict[str, dict] = {
    "cpu": dict.fromkeys(DTYPES, (*ROWS, *CPU_BLOCKS)),
    "gpu": {
        np.float32: (*ROWS, (1, 5, 8, 20, 1000), (1, 66, 3, 5, 1000), (1, 5, 6, 3, 0)),
        np.float16: (*ROWS, (1, 5, 8, 4, 1000), (1, 7, 9, 18, 0)),
        ml_dtypes.bfloat16: (*ROWS, (2, 7, 9, 5, 1000), (1, 5, 8, 4, 0)),
    },
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


def checked(icd: Path, tmp_path: Path, *arguments: str) -> tuple[dict, str]:
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


@pytest.mark.parametrize("form", ["gpu", "cpu"])
def test_every_kernel_is_clean(form, icd, tmp_path):
    told, log = checked(icd, tmp_path, form)
    assert log == ""
    assert told["wrong"] == []
    assert told["launched"] == told["existing"] and len(told["existing"]) >= 17


@pytest.mark.parametrize("mistake", PLANTED)
def test_mistakes_are_found(mistake, icd, tmp_path):
    _, log = checked(icd, tmp_path, "planted", mistake)
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


def run_form(form: str) -> dict:
    """Launches every kernel of a form on small arrays; which were launched, which exist, which were wrong."""
    import pyopencl as cl

    from tensor_ops_opencl import engine

    engine.OPTIONS = (
        "-cl-std=CL1.2",
        "-cl-opt-disable",
    )  # oclgrind knows not all that LLVM's optimizer makes
    context = cl.Context([device()])
    queue, program = cl.CommandQueue(context), engine.Program(context, context.devices[0], form)
    launched, wrong = set(), []
    for op, arrays, compute_units in cases(form):
        launch, right = run_case(program, queue, op, arrays, compute_units)
        launched.add(launch.kernel)
        if not right:
            wrong.append([launch.kernel, [array.shape for array in arrays]])
    existing = [kernel.function_name for kernel in program.built.all_kernels()]
    return {"launched": sorted(launched), "existing": sorted(existing), "wrong": wrong}


def cases(form: str):
    """Op, arrays, compute units."""
    from airllm.tensor_ops import OPS

    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        for op in (OPS["silu"], OPS["gelu"], OPS["softmax"], OPS["rms_norm"]):
            for d in LENGTHS:
                arrays = op.sample(rng, dtype, batch=(3, d) if op.arrays == {"x": ("...",)} else (3,), d=d)
                yield op, arrays, 1
                if len(arrays) == 2 and dtype != np.float32:
                    yield op, [arrays[0], arrays[1].astype(np.float32)], 1
        for batch, m, n, k, compute_units in MATRICES[form][dtype]:
            arrays = OPS["matmul"].sample(rng, dtype, batch=(batch,), m=m, n=n, k=k)
            yield OPS["matmul"], arrays, compute_units


KEPT: list = []  # oclgrind takes a buffer at the address of a freed one for what that one was


def run_case(program, queue, op, arrays, compute_units):
    """Launches half the work-groups that there is work for: they must go on to more of it."""
    import pyopencl as cl

    from tensor_ops_opencl.launches import launch_of

    context = queue.context
    shape = op.out_shape(arrays)
    numbers = tuple(op.defaults.values())
    launch = launch_of(op.name, arrays, numbers, shape, program.form, compute_units)
    launch = dataclasses.replace(launch, groups=(launch.groups + 1) // 2)
    out = np.empty(shape, arrays[0].dtype)
    buffers = [cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=a.view(np.uint8)) for a in arrays]
    buffers.append(cl.Buffer(context, 0, out.nbytes))
    if launch.scratch_bytes:
        buffers.append(cl.Buffer(context, 0, launch.scratch_bytes))
    KEPT.extend(buffers)
    program.launch(queue, launch, buffers)
    cl.enqueue_copy(queue, out.view(np.uint8), buffers[len(arrays)])
    exact = op.exact(*arrays)
    allowed = TOLERANCE[out.dtype] * np.abs(exact).max(axis=-1, keepdims=True)
    return launch, bool((np.abs(out.astype(np.float64) - exact) <= allowed).all())


if __name__ == "__main__":
    print(json.dumps(run_planted(sys.argv[2]) if sys.argv[1] == "planted" else run_form(sys.argv[1])))
