"""The codebooks of iq1, iq2 and iq3 as one uniform buffer.

WGSL has constant arrays too, but some drivers copy them for each access. A storage buffer would be one of the
few that a kernel may have.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from airllm.formats.codebooks import CODEBOOKS

OF_CODEBOOKS = frozenset(("iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m"))


@dataclass(frozen=True)
class CodebookTable:
    """Two vectors in each word (uint32), and the number of each codebook's first vector."""

    words: np.ndarray
    starts: Mapping[str, int]


@functools.cache
def codebook_table() -> CodebookTable:
    """All codebooks, one after the other."""
    packed = {name: book.packed() for name, book in CODEBOOKS.items()}
    ends = accumulate(vectors.size for vectors in packed.values())
    starts = {name: end - packed[name].size for name, end in zip(packed, ends, strict=True)}
    return CodebookTable(np.concatenate([*packed.values()]).view(np.uint32), starts)
