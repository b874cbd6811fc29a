"""MXFP4, as in the folders of GPT-OSS: 32 codes of four bits with a power of two. ggml's format is the same
in another order of codes; only the negative zero is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.files.published.scheme import EXACT, Blocks, Held, Parts
from airllm.formats.bits import nibbles, pack_nibbles

_BYTES = 16  # of the codes of a block


@dataclass(frozen=True)
class Mxfp4:
    """Stacks of experts (experts, rows, blocks, 16). The rows of gate and up alternate; here they become
    halves.
    """

    title: str = "MXFP4"
    parts: tuple[str, ...] = ("blocks", "scales")
    ignored: tuple[str, ...] = ()

    def stores(self, parts: Parts) -> bool:
        return "blocks" in parts

    def held(self, parts: Parts) -> Held:
        shape = parts.shape("blocks")
        if len(shape) != 4 or shape[3] != _BYTES or parts.dtype("blocks") != np.uint8:
            found = f"has shape {shape} and dtype {parts.dtype('blocks')}"
            raise parts.error("blocks", found, f"(experts, rows, blocks, {_BYTES}) of uint8")
        parts.require("scales", shape[:3])
        return Held((*shape[:2], shape[2] * 32), "mxfp4", EXACT)

    def rows(self, parts: Parts, rows: slice) -> Blocks:
        experts, of_expert, blocks, _ = parts.shape("blocks")
        index = np.arange(experts * of_expert).reshape(experts, -1)
        if parts.module.endswith("gate_up_proj"):
            index = np.concatenate([index[:, ::2], index[:, 1::2]], axis=1)
        chosen = index.reshape(-1)[rows]
        packed = parts.read("blocks").reshape(-1, blocks, _BYTES)[chosen].reshape(-1, _BYTES)
        scales = parts.read("scales").reshape(-1, blocks)[chosen].reshape(-1, 1)
        return Blocks(np.hstack([scales, pack_nibbles(nibbles(packed, run=1))]).reshape(len(chosen), -1))


def mxfp4(config: dict[str, Any]) -> Mxfp4:
    return Mxfp4()
