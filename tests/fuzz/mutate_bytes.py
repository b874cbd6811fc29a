"""Damage to bytes of any kind: flips, numbers of sizes and offsets, cuts, splices."""

import random
import struct
from collections.abc import Callable, Sequence

# (an input, chance, all seeds) -> another input
Mutator = Callable[[bytes, random.Random, Sequence[bytes]], bytes]

# Where sizes, signs and types of integers end.
EDGES = (
    *(0, 1, 2, 3, 4, 7, 8, 12, 13, 31, 32, 33, 127, 128, 255, 256, 65535, 65536),
    *(2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1),
)
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
_MOST = 1 << 20  # bytes of an input


def mutate_bytes(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to eight kinds of damage, mostly near the beginning, where headers are."""
    found = bytearray(data)
    reach = chance.choice((64, 512, 4096, len(found)))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(min(len(found), reach) or 1)
        chance.choice(_KINDS)(found, at, chance)
    return bytes(found[:_MOST])


def truncate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """The beginning of an input."""
    return data[: chance.randrange(len(data) + 1)]


def splice(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """The beginning of an input and the end of another seed."""
    other = chance.choice(seeds)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _flip(found: bytearray, at: int, chance: random.Random) -> None:
    found[at : at + 1] = bytes(byte ^ 1 << chance.randrange(8) for byte in found[at : at + 1])


def _set(found: bytearray, at: int, chance: random.Random) -> None:
    found[at : at + 1] = bytes([chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))])


def _number(found: bytearray, at: int, chance: random.Random) -> None:
    size, code = chance.choice(((4, "<I"), (8, "<Q")))
    found[at : at + size] = struct.pack(code, chance.choice(EDGES) % (1 << 8 * size))


def _float(found: bytearray, at: int, chance: random.Random) -> None:
    found[at : at + 4] = struct.pack("<f", chance.choice(FLOATS))


def _delete(found: bytearray, at: int, chance: random.Random) -> None:
    del found[at : at + chance.choice((1, 4, 8, 64, 1000))]


def _insert(found: bytearray, at: int, chance: random.Random) -> None:
    found[at:at] = chance.randbytes(chance.choice((1, 4, 8, 32)))


def _copy(found: bytearray, at: int, chance: random.Random) -> None:
    start, count = chance.randrange(len(found) or 1), chance.choice((4, 8, 32, 100))
    found[at : at + count] = found[start : start + count]


_KINDS = (_flip, _set, _number, _float, _delete, _insert, _copy)
