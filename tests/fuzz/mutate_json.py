"""Damage to JSON that stays JSON: other types, edges of numbers, keys that are missing or strange."""

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

from tests.fuzz.mutate_bytes import EDGES, Mutator

_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 10**30, 10**400, float("nan"), float("inf")),
    *(
        2**31,
        2**47,
        2**63,
        -(2**63),
        "",
        "x",
        "\0",
        "\ud800",
        "é" * 300,
        "..",
        "../x",
        "/etc/passwd",
        "{{ 1 }}",
    ),
    *([], {}, [1], [[]], {"a": 1}, [None], [1, "x"], [[0] * 9] * 9, "F32", "BF16", "Q8", "auto", "cpp"),
)


def mutate_json(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Some of the values become others; `data` as it is where it is no JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    rate = chance.choice((0.02, 0.05, 0.15, 0.4))
    changed = _mutate(value, chance, rate)
    if changed == value:
        changed = _mutate(value, chance, 0.4)
    return encode(changed, chance)


def encode(value: Any, chance: random.Random) -> bytes:
    """JSON text, also of numbers and characters that JSON does not have."""
    text = json.dumps(value, indent=chance.choice((None, None, 1)), ensure_ascii=chance.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def deepen(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One value lies under very many lists or objects, or has very many digits; or a key stands twice."""
    places = [i for i, byte in enumerate(data) if byte in b":,["] or [0]
    at = chance.choice(places) + 1
    levels = chance.choice((50, 1000, 100_000))
    opened, closed = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    added = chance.choice((opened * levels + b"1" + closed * levels, b"9" * levels, b'"a":1,"a":2,'))
    return data[:at] + added + (b"," if chance.random() < 0.5 else b"") + data[at:]


def mix_values(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Some keys get the values that they, or others, have in another seed."""
    try:
        value, other = json.loads(data), json.loads(chance.choice(seeds))
    except (ValueError, RecursionError):
        return data
    if not (isinstance(value, dict) and isinstance(other, dict) and value and other):
        return data
    for _ in range(chance.choice((1, 2, 5))):
        source = chance.choice(sorted(other))
        value[source if chance.random() < 0.8 else chance.choice(sorted(value))] = other[source]
    return encode(value, chance)


def _mutate(value: Any, chance: random.Random, rate: float) -> Any:
    if chance.random() < rate * 0.3:
        return chance.choice(_STRANGE)
    if isinstance(value, dict):
        return _mutate_object(value, chance, rate)
    if isinstance(value, list):
        # long lists (a vocabulary) are changed in a few places
        few = rate if len(value) < 20 else rate * 4 / len(value)
        items = [_mutate(each, chance, few) for each in value]
        if items and chance.random() < rate:
            del items[chance.randrange(len(items))]
        return items
    if type(value) in (int, float) and chance.random() < rate:
        return chance.choice((value + 1, value - 1, value * 2, -value, value // 2, *EDGES))
    if isinstance(value, str) and chance.random() < rate:
        return chance.choice((value[1:], value + value, value.upper(), value + "\0", f" {value}"))
    return value


def _mutate_object(value: dict[str, Any], chance: random.Random, rate: float) -> dict[str, Any]:
    few = rate if len(value) < 20 else max(rate / 4, rate * 4 / len(value))
    found = {key: _mutate(each, chance, few) for key, each in value.items()}
    if found and chance.random() < rate:
        found.pop(chance.choice(sorted(found)))
    if found and chance.random() < rate:
        found[chance.choice(sorted(found))] = chance.choice(_STRANGE)
    if found and chance.random() < rate / 2:
        name = chance.choice(sorted(found))
        found[chance.choice((name + "s", name.upper(), "", "x"))] = found[name]
    return found


def in_header(mutator: Mutator) -> Mutator:
    """The mutator applied to the JSON header of a safetensors file; mostly with the length corrected."""

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
        header, rest = split_header(data)
        if header is None:
            return data
        headers = [each for seed in seeds if (each := split_header(seed)[0]) is not None]
        changed = mutator(header, chance, headers)
        length = len(changed) if chance.random() < 0.95 else chance.choice(EDGES)
        return struct.pack("<Q", length) + changed + rest

    return mutate


def split_header(data: bytes) -> tuple[bytes | None, bytes]:
    """The header of a safetensors file and what follows; None if it has none."""
    if len(data) < 8 or (length := struct.unpack_from("<Q", data)[0]) > len(data) - 8:
        return None, data
    return data[8 : 8 + length], data[8 + length :]


def after_first_line(mutator: Mutator) -> Mutator:
    """The mutator applied to what follows the first line, which names an address of the server."""

    def mutate(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
        line, end, rest = data.partition(b"\n")
        return line + end + mutator(rest, chance, [seed.partition(b"\n")[2] for seed in seeds])

    return mutate


def another_first_line(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A body that is sent to another address."""
    return chance.choice(seeds).partition(b"\n")[0] + b"\n" + data.partition(b"\n")[2]
