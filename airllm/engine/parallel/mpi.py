"""The processes that share a model, and their communication by MPI."""

from __future__ import annotations

from typing import Any

import numpy as np


def mpi_processes(size: int, rank: int) -> MpiProcesses | None:
    """MPI's processes, of which this one is number `rank`; None if MPI started only this one."""
    try:
        alone = _mpi().COMM_WORLD.Get_size() == 1
    except ImportError:
        return None
    return None if alone else MpiProcesses(size, rank)


_HOW = "run `mpiexec -n {size} python -m mpi4py program.py`, which starts {size} of it"


class MpiProcesses:
    """The processes of MPI's COMM_WORLD. There must be `size`, and this one must be number `rank`.

    Raises ValueError otherwise, ImportError if mpi4py or an MPI library is missing.
    """

    def __init__(self, size: int, rank: int):
        self._mpi = _mpi()
        self._world = self._mpi.COMM_WORLD
        here, me = self._world.Get_size(), self._world.Get_rank()
        if here != size:
            how = _HOW.format(size=size)
            raise ValueError(
                f"world_size has value {size}, expected {here}, as many as MPI has started: {how}"
            )
        if me != rank:
            raise ValueError(f"mpi_rank has value {rank}, expected {me}, this process's in MPI.COMM_WORLD")
        self.size, self.rank = size, rank

    def all_reduce(self, array: np.ndarray) -> None:
        """Replace a float32 array, in place, by its sum over all processes."""
        self._world.Allreduce(self._mpi.IN_PLACE, array)

    def gather(self, part: np.ndarray, counts: list[int]) -> np.ndarray:
        """The concatenated float32 parts of all processes, of `counts` values each."""
        whole = np.empty(sum(counts), np.float32)
        self._world.Allgatherv(part, [whole, counts])
        return whole

    def on_this_machine(self) -> int:
        """How many of the processes run on this machine."""
        here = self._world.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            return here.Get_size()
        finally:
            here.Free()


def _mpi() -> Any:
    try:
        from mpi4py import MPI  # loads the MPI library, which may be missing
    except (ImportError, RuntimeError) as error:
        remedy = 'install "airllm-tensor-ops[mpi]": mpi4py and mpich'
        raise ImportError(
            f"world_size above 1 needs mpi4py and an MPI library ({error}): {remedy}"
        ) from error
    return MPI
