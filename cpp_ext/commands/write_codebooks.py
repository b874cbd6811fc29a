"""write_codebooks: write the headers with the codebooks of airllm/formats/codebooks.py, for C++ and for GPUs.

The headers are committed, so that a program compiles without Python.
"""

from collections.abc import Sequence
from typing import Any

from . import probes

HELP = "write the codebooks of stored formats for C++ and for GPUs"
HEADER = probes.CPP_EXT / "cpu" / "quantized" / "blocks" / "codebook_members.h"
HEAD = """// The codebooks of the formats iq1, iq2 and iq3: their levels, and a bit for each member.
// `python setup.py write_codebooks` generates this file from airllm/formats/codebooks.py.
#pragma once
#include "stored_codebook.h"

namespace cpu {

// clang-format off
"""
TAIL = """// clang-format on

}  // namespace cpu
"""
WORDS_PER_LINE = 5
GPU_HEADER = probes.CPP_EXT / "gpu_kernels" / "common" / "formats" / "codebooks.h"
GPU_HEAD = """// The codebooks of iq1, iq2 and iq3. A vector has 16 bits: the numbers of its values' levels.
// `python setup.py write_codebooks` generates this file from airllm/formats/codebooks.py.
#ifndef AIRLLM_CODEBOOKS_H
#define AIRLLM_CODEBOOKS_H

#include "../gpu_compat.h"

// clang-format off
"""
GPU_TAIL = """// clang-format on

#endif
"""
VECTORS_PER_LINE = 12


def add_options(parser) -> None:
    """This command has no options."""


def run(options) -> None:
    for header, text in ((HEADER, written()), (GPU_HEADER, written_for_gpus())):
        header.write_text(text, encoding="utf-8")
        print(f"wrote {header.relative_to(probes.CHECKOUT)}")


def written() -> str:
    """The text of the header."""
    from airllm.formats.codebooks import CODEBOOKS  # needs NumPy, which other commands do without

    books = (
        definition(name, book.levels, book.length, book.members().tolist())
        for name, book in CODEBOOKS.items()
    )
    return HEAD + "\n".join(books) + TAIL


def written_for_gpus() -> str:
    """The text of the header of GPUs' kernels."""
    from airllm.formats.codebooks import CODEBOOKS

    return GPU_HEAD + "\n".join(gpu_definition(name, book) for name, book in CODEBOOKS.items()) + GPU_TAIL


def gpu_definition(name: str, book: Any) -> str:
    vectors = [f"0x{vector:04x}" for vector in book.packed()]
    lines = [vectors[i : i + VECTORS_PER_LINE] for i in range(0, len(vectors), VECTORS_PER_LINE)]
    rows = [f"    {', '.join(line)}," for line in lines]
    return "\n".join([f"CONSTANT U16 book_{name}[{len(vectors)}] = {{", *rows, "};\n"])


def definition(name: str, levels: Sequence[int], length: int, members: Sequence[int]) -> str:
    words = words_of(members, len(levels) ** length)
    lines = [words[i : i + WORDS_PER_LINE] for i in range(0, len(words), WORDS_PER_LINE)]
    kind = f"StoredCodebook<{len(levels)}, {length}, {len(members)}>"
    return "\n".join(
        [
            f"inline constexpr {kind} kStored{name.upper()} = {{",
            f"    {{{', '.join(map(str, levels))}}}, {{",
            *(f"    {', '.join(line)}," for line in lines),
            "}};\n",
        ]
    )


def words_of(members: Sequence[int], numbers: int) -> list[str]:
    """A bit for each number, in words of 64 bits, the lowest first."""
    bits = sum(1 << number for number in members)
    return [f"0x{bits >> at & (1 << 64) - 1:016x}" for at in range(0, numbers, 64)]
