"""airllm in one process with packages that bring thread pools of their own, imported before it and after it.

    python -m tests.compatibility.beside_others [torch] [sklearn]     (default: those that are installed)

Both sides compute in turns, right and with threads; so does a forked child of airllm's.
"""

import argparse
import itertools
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np

OTHERS = ("torch", "sklearn")
THREADS = int(os.environ.setdefault("AIRLLM_NUM_THREADS", "2"))


def compute(name: str, x: np.ndarray) -> None:
    """Something that this package splits among threads, compared with NumPy."""
    truth = x.astype(np.float64)
    truth /= 1 + np.exp(-truth)
    if name == "airllm":
        from airllm import tensor_ops

        assert np.allclose(tensor_ops.silu(x, backend="cpp"), truth, atol=1e-5)
    elif name == "torch":
        import torch

        torch.set_num_threads(THREADS)
        assert np.allclose(torch.nn.functional.silu(torch.from_numpy(x)).numpy(), truth, atol=1e-5)
    else:
        from sklearn.cluster import KMeans

        few = x[:, :8].astype(np.float64)
        found = KMeans(4, n_init=1, max_iter=5, random_state=0).fit(few)
        assert np.isfinite(found.inertia_) and found.labels_.shape == (len(x),)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def work(order: list[str]) -> None:
    """In a process of its own: import in this order, and compute in turns."""
    for name in order:
        import_module({"airllm": "airllm.tensor_ops"}.get(name, name))
    x = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)
    before = threads()
    compute("airllm", x)
    assert threads() > before, "airllm computes without further threads"
    for _ in range(5):
        for name in order:
            compute(name, x)
    if not (child := os.fork()):
        compute("airllm", x)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a forked child fails"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("others", nargs="*", default=[name for name in OTHERS if find_spec(name)])
    parser.add_argument("--order", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order:
        return work(options.order.split(","))
    if not options.others:
        sys.exit(f"none of these is installed: {', '.join(OTHERS)}")
    for order in itertools.permutations(["airllm", *options.others]):
        command = [sys.executable, "-m", "tests.compatibility.beside_others", "--order", ",".join(order)]
        subprocess.run(command, check=True, timeout=300)
        print(f"imported in this order, all compute: {', '.join(order)}", flush=True)


if __name__ == "__main__":
    main()
