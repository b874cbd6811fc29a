"""Ways to choose a backend, as runnable examples: `python examples/backend_examples.py`.

A backend that cannot run on this machine is skipped, and the reason is printed.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

# Import airllm from the checkout if it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm import backends, tensor_ops

rng = np.random.default_rng(0)
x = rng.standard_normal((128, 4096), np.float32)
weight = rng.standard_normal(4096, np.float32)


def automatic() -> None:
    """The fastest backend of this machine, unless backend.json says otherwise."""
    y = tensor_ops.rms_norm(x, weight)
    print(f"{tensor_ops.get_backend()} ran rms_norm; the result is {y.dtype} {y.shape}")


def which_and_why() -> None:
    """Which backends can run here, and why the others cannot."""
    info = tensor_ops.get_backend_info()
    print(f"active {info['backend']} on {info['device']}, chosen by {info['config_source']}")
    for name, reason in info["unavailable"].items():
        print(f"{name} cannot run: {reason}")


def for_one_call() -> None:
    """`backend=` applies to that call only."""
    y = tensor_ops.silu(x, backend="python")
    print(f"NumPy ran silu once; before and after it is {tensor_ops.get_backend()}: {y[0, :3]}")


def for_a_block() -> None:
    """`use_backend` applies inside the `with` block, in this thread only."""
    seen = []
    with tensor_ops.use_backend("python"):
        other = threading.Thread(target=lambda: seen.append(tensor_ops.get_backend()))
        other.start()
        other.join()
        print(f"inside the block {tensor_ops.get_backend()}, in another thread {seen[0]}")


def for_the_process() -> None:
    """`set_backend` applies to all threads from then on; "auto" returns to the configuration."""
    tensor_ops.set_backend("python")
    print(f"after set_backend: {tensor_ops.get_backend()}")
    tensor_ops.set_backend("auto")
    print(f"after auto: {tensor_ops.get_backend()}")


def by_environment() -> None:
    """`AIRLLM_BACKEND` needs no change to the program: one name forces a backend, a list is an order."""
    program = "from airllm import tensor_ops; print(tensor_ops.get_backend())"
    for value in ("python", "cuda,cpp,python"):
        environment = {**os.environ, "AIRLLM_BACKEND": value, "PYTHONPATH": sys.path[0]}
        command = [sys.executable, "-c", program]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        print(f"AIRLLM_BACKEND={value} runs {answer.stdout.strip()}")


def one_that_cannot_run() -> None:
    """A named backend that cannot run raises with the reason; it is never replaced silently."""
    missing = next(iter(tensor_ops.get_backend_info()["unavailable"]), None)
    if missing is None:
        print("every backend runs on this machine")
        return
    try:
        tensor_ops.silu(x, backend=missing)
    except ImportError as error:
        print(f"silu on {missing} raises: {error}")


def in_place() -> None:
    """`out=` writes into an existing array; for most ops it may be the input itself."""
    y = x.copy()
    tensor_ops.gelu(y, out=y)
    print(f"gelu in place: {np.shares_memory(tensor_ops.silu(y, out=y), y)}")


def any_float_type() -> None:
    """float16 and bfloat16 compute in float32; the result has the input's dtype."""
    print(f"softmax of float16 gives {tensor_ops.softmax(x.astype(np.float16)).dtype}")


def threads() -> None:
    """The C++ backend uses all cores by default."""
    module = backends.open_backend("cpp").module
    if module is None:
        print(f"cpp cannot run: {backends.open_backend('cpp').why_not}")
        return
    before = module.num_threads()
    module.set_num_threads(1)
    tensor_ops.silu(x, backend="cpp")
    print(f"silu ran on {module.num_threads()} thread; the default here is {before}")
    module.set_num_threads(before)


def directly() -> None:
    """A backend's module has the same functions, and describes its device."""
    for name in ("cpp", "opencl", "cuda"):
        module = backends.open_backend(name).module
        if module is None:
            print(f"tensor_ops_{name} cannot run: {backends.open_backend(name).why_not}")
        else:
            y = module.rms_norm(x, weight)
            print(f"tensor_ops_{name} on {module.device()}: {y[0, :3]}")


EXAMPLES = (
    automatic,
    which_and_why,
    for_one_call,
    for_a_block,
    for_the_process,
    by_environment,
    one_that_cannot_run,
    in_place,
    any_float_type,
    threads,
    directly,
)


def main() -> None:
    for number, example in enumerate(EXAMPLES, 1):
        summary = (example.__doc__ or "").splitlines()[0]
        print(f"\n{number}. {example.__name__}: {summary}")
        example()


if __name__ == "__main__":
    main()
