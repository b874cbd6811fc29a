"""A program for `mpiexec -n N python -m mpi4py`: each process decodes with its part of some models, and with
all of them by itself. Rank 0 prints how far the logits are apart, in JSON; the others', their ranks.

    decoding_in_processes.py BACKEND MODEL...
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from airllm import PersistentKernel
from tests.support.models import tiny_models

WORLD = MPI.COMM_WORLD


def decode(path: str, **options) -> np.ndarray:
    """The logits of steps, and after a prompt that goes through the layers at once."""
    text = tiny_models.texts()[0]
    with PersistentKernel(model=path, cache_dtype="f32", **options) as kernel:
        steps = [kernel.step(token) for token in text[:5]]
        kernel.reset()
        return np.stack([*steps, kernel.prefill(text[:20]), kernel.step(text[20])])


def compare(path: str, **options) -> dict:
    alone = decode(path, **options)
    together = decode(path, world_size=WORLD.size, mpi_rank=WORLD.rank, **options)
    with PersistentKernel(model=path, world_size=WORLD.size, mpi_rank=WORLD.rank, **options) as kernel:
        plan = kernel.plan
    far = float(np.abs(together - alone).max() / np.ptp(alone))
    return {
        "far": max(WORLD.allgather(far)),
        "alike": len(set(WORLD.allgather(together.tobytes()))),
        "plan": plan,
    }


def refusal(**options) -> str:
    try:
        PersistentKernel(model=tiny_models.DATA / "llama3", **options)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    backend, *models = sys.argv[1:]
    told = {Path(path).name: compare(path, backend=backend) for path in models}
    size, rank = WORLD.size, WORLD.rank
    wrong = WORLD.allgather(refusal(backend=backend, world_size=size, mpi_rank=(rank + 1) % size))
    more = WORLD.allgather(refusal(backend=backend, world_size=size + 1, mpi_rank=rank))
    if rank == 0:
        print(json.dumps({"models": told, "wrong_rank": wrong, "wrong_size": more}))


if __name__ == "__main__":
    main()
