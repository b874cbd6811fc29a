"""The table of formats."""

from __future__ import annotations

from typing import Any

from airllm.formats import blocks_32, blocks_256, blocks_codebook, pack_256
from airllm.formats.format import Format

FORMATS = {
    f.name: f
    for f in (
        Format("q8_0", 32, 34, 8, blocks_32.unpack_q8_0, blocks_32.pack_q8_0, file_type=7),
        Format("q4_0", 32, 18, 2, blocks_32.unpack_q4_0, blocks_32.pack_q4_0, file_type=2),
        Format("q4_1", 32, 20, 3, blocks_32.unpack_q4_1, blocks_32.pack_q4_1, file_type=3, halves=(0, 2)),
        Format("q5_0", 32, 22, 6, blocks_32.unpack_q5_0, blocks_32.pack_q5_0, file_type=8),
        Format("q5_1", 32, 24, 7, blocks_32.unpack_q5_1, blocks_32.pack_q5_1, file_type=9, halves=(0, 2)),
        Format(
            "q2_k", 256, 84, 10, blocks_256.unpack_q2_k, pack_256.pack_q2_k, file_type=10, halves=(80, 82)
        ),
        Format("q3_k", 256, 110, 11, blocks_256.unpack_q3_k, pack_256.pack_q3_k, file_type=12, halves=(108,)),
        Format("q4_k", 256, 144, 12, blocks_256.unpack_q4_k, pack_256.pack_q4_k, file_type=15, halves=(0, 2)),
        Format("q5_k", 256, 176, 13, blocks_256.unpack_q5_k, pack_256.pack_q5_k, file_type=17, halves=(0, 2)),
        Format("q6_k", 256, 210, 14, blocks_256.unpack_q6_k, pack_256.pack_q6_k, file_type=18, halves=(208,)),
        Format("iq4_nl", 32, 18, 20, blocks_32.unpack_iq4_nl, blocks_32.pack_iq4_nl, file_type=25),
        Format("iq4_xs", 256, 136, 23, blocks_256.unpack_iq4_xs, pack_256.pack_iq4_xs, file_type=30),
        Format("mxfp4", 32, 17, 39, blocks_32.unpack_mxfp4, blocks_32.pack_mxfp4, file_type=38, halves=()),
        Format("iq3_xxs", 256, 98, 18, blocks_codebook.unpack_iq3_xxs),
        Format("iq3_s", 256, 110, 21, blocks_codebook.unpack_iq3_s),
        Format("iq2_xxs", 256, 66, 16, blocks_codebook.unpack_iq2_xxs),
        Format("iq2_xs", 256, 74, 17, blocks_codebook.unpack_iq2_xs),
        Format("iq2_s", 256, 82, 22, blocks_codebook.unpack_iq2_s),
        Format("iq1_s", 256, 50, 19, blocks_codebook.unpack_iq1_s),
        Format("iq1_m", 256, 56, 29, blocks_codebook.unpack_iq1_m, halves=()),
        Format("tq1_0", 256, 54, 34, blocks_256.unpack_tq1_0, halves=(52,)),
        Format("tq2_0", 256, 66, 35, blocks_256.unpack_tq2_0, halves=(64,)),
    )
}


def names(packing: bool = False) -> str:
    """The names of all formats, or of those with a quantizer, for a message."""
    return ", ".join(name for name, f in FORMATS.items() if f.pack or not packing)


def is_defined(name: str, packing: bool) -> bool:
    """Whether there is a format of this name, or one with a quantizer if `packing`. Case is ignored."""
    of = FORMATS.get(name.lower())
    return of is not None and (of.pack is not None or not packing)


def format_named(name: Any, what: str = "Quantized", packing: bool = False) -> Format:
    """The format of this name, with a quantizer if `packing`; case is ignored.

    Raises ValueError for an unknown name and TypeError for a value that is no str. Both list the formats.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}: format has type {type(name).__name__}, expected one of {names(packing)}")
    if not is_defined(name, packing):
        raise ValueError(f"{what}: format has value '{name}', expected one of {names(packing)}")
    return FORMATS[name.lower()]
