"""What a backend implements so that a model's arrays stay on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from airllm.backends.device.counters import Counters
from airllm.backends.device.launch_plan import Plan

Part: TypeAlias = tuple[Any, int, int]  # a buffer, an offset in it, and how many bytes from there


class Place(Protocol):
    """An open device of a backend, in one in-order queue: memory, transfers, kernels.

    `label` is its line in messages. `alignment`: kernels take arrays that begin at multiples of so many bytes
    in their memory. `writes_inputs`: whether a launch may write memory that it reads.
    """

    label: str
    alignment: int
    writes_inputs: bool
    counters: Counters

    def allocate(self, nbytes: int) -> Any:
        """New memory."""

    def upload(self, buffer: Any, array: np.ndarray) -> None:
        """Copy a dense host array to the beginning of a buffer. Does not wait."""

    def download(self, buffer: Any, offset: int, out: np.ndarray) -> None:
        """Wait for all that was started, and copy from a buffer to a dense host array."""

    def plan(self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], outs: Any) -> Plan:
        """The launches of a call with non-empty results `outs`, by name."""

    def run(self, plan: Plan, memory: Mapping[str, Part]) -> None:
        """Start the launches of a plan. Does not wait."""

    def has(self, op: str) -> bool:
        """Whether there is a kernel of this op."""

    def fuses(self, name: str, arrays: Mapping[str, Any]) -> bool:
        """Whether there is a kernel of "gated_linear", "rope_append" or the like for these arrays."""

    def attention_splits(self, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
        """Into how many parts attention divides the keys, whose results are merged."""

    def formats(self) -> Sequence[str]:
        """The block formats that its kernels read."""
