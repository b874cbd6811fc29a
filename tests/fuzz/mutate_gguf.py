"""Damage to GGUF files that knows their layout: counts, lengths, types, values, dimensions, offsets, names.

It finds the fields by itself, and not by airllm's reader, whose mistakes it looks for.
"""

import contextlib
import random
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.fuzz.mutate_bytes import EDGES, FLOATS, mutate_bytes

# GGUF's number of a value type -> its struct format
_CODES = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_NEAR = (0, 1, 2, 3, 5, 8, 12, 16, 24, 31, 32, 48, 64, 96, 100, 128, 4095, 4096)  # sizes of small models


class Field(NamedTuple):
    """A number in the header: where it is, its struct format, and what it is."""

    at: int
    code: str
    role: str


def mutate_gguf(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to four fields get other values. Bytes in which no fields are found are damaged as bytes."""
    found, fields = bytearray(data), []
    with contextlib.suppress(struct.error, KeyError, OverflowError):
        for each in find_fields(data):
            fields.append(each)
    fields = [each for each in fields if each.at + struct.calcsize(each.code) <= len(data)]
    if not fields:
        return mutate_bytes(data, chance, seeds)
    roles = sorted({field.role for field in fields})
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        role = chance.choice(roles)
        field = chance.choice([each for each in fields if each.role == role])
        _change(found, field, fields, chance)
    return bytes(found)


def damage_tensors(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Numbers that are none, or extreme, and random bytes in what the header does not describe."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(found) // 2, len(found)) if len(found) > 1 else 0
        value = chance.choice((struct.pack("<f", chance.choice(FLOATS)), chance.randbytes(16)))
        found[at : at + len(value)] = value
    return bytes(found[: len(data)])


def find_fields(data: bytes) -> Iterator[Field]:
    """The fields of the header. struct.error, KeyError or OverflowError where it is broken."""
    yield Field(4, "<I", "version")
    yield Field(8, "<Q", "count")
    yield Field(16, "<Q", "count")
    tensors, keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(keys):
        yield from _text(data, at, "key")
        at = _end_of_text(data, at)
        yield Field(at, "<I", "type")
        kind = struct.unpack_from("<I", data, at)[0]
        yield from _value(data, at + 4, kind)
        at = _end_of_value(data, at + 4, kind)
    for _ in range(tensors):
        yield from _text(data, at, "tensor")
        at = _end_of_text(data, at)
        yield Field(at, "<I", "dimensions")
        count = struct.unpack_from("<I", data, at)[0]
        yield from (Field(at + 4 + 8 * i, "<Q", "dimension") for i in range(min(count, 8)))
        at += 4 + 8 * count
        yield Field(at, "<I", "tensor type")
        yield Field(at + 4, "<Q", "offset")
        at += 12


def _text(data: bytes, at: int, role: str) -> Iterator[Field]:
    yield Field(at, "<Q", f"{role} length")
    if length := struct.unpack_from("<Q", data, at)[0]:
        yield Field(at + 8 + length - 1, "<B", f"{role} name")


def _end_of_text(data: bytes, at: int) -> int:
    return at + 8 + struct.unpack_from("<Q", data, at)[0]


def _value(data: bytes, at: int, kind: int) -> Iterator[Field]:
    if kind == 8:
        yield from _text(data, at, "text")
    elif kind == 9:
        yield Field(at, "<I", "type")
        yield Field(at + 4, "<Q", "count")
        items, count = struct.unpack_from("<IQ", data, at)
        if items != 8:
            yield from (Field(at + 12 + i * struct.calcsize(_CODES[items]), _CODES[items], "item")
                        for i in range(min(count, 4)))  # fmt: skip
    else:
        yield Field(at, _CODES[kind], "value")


def _end_of_value(data: bytes, at: int, kind: int) -> int:
    if kind == 8:
        return _end_of_text(data, at)
    if kind != 9:
        return at + struct.calcsize(_CODES[kind])
    items, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if items != 8:
        return at + count * struct.calcsize(_CODES[items])
    for _ in range(count):
        at = _end_of_text(data, at)
    return at


def _change(found: bytearray, field: Field, fields: list[Field], chance: random.Random) -> None:
    size = struct.calcsize(field.code)
    if field.code in ("<f", "<d"):
        value = struct.pack(field.code, chance.choice(FLOATS))
    elif chance.random() < 0.2:  # as another field of its kind
        other = chance.choice([each for each in fields if each.code == field.code])
        value = bytes(found[other.at : other.at + size])
    else:
        now = int.from_bytes(found[field.at : field.at + size], "little")
        number = chance.choice((*EDGES, *_NEAR, now + 1, now - 1, now * 2, now // 2))
        if field.role in ("type", "tensor type"):
            number = chance.choice((number, *range(42)))
        value = (number % (1 << 8 * size)).to_bytes(size, "little")
    found[field.at : field.at + size] = value
