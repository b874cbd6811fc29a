"""What a constraint costs: preparing a tokenizer, compiling a schema, and a token with its mask.

python benchmarks/bench_grammar.py [MODEL]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm.engine.sampling import Sampler, Sampling, log_probabilities
from airllm.files.hub import locate
from airllm.text.grammar import Grammars
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 8},
        "kind": {"enum": ["cat", "dog", "fish"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
TEXT = json.dumps({"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "poetry"], "kind": "cat"})


def microseconds(call: Callable[[], object], rounds: int = 300) -> float:
    """The median time of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def print_sampler(vocabulary: int) -> None:
    logits = np.random.default_rng(0).standard_normal(vocabulary).astype(np.float32) * 3
    mask = np.random.default_rng(1).random(vocabulary) < 0.01
    cases: dict[str, tuple[Sampling, np.ndarray | None]] = {
        "most likely token": (Sampling(), None),
        "temperature, top-k, top-p": (Sampling(0.7, 40, 0.95, seed=0), None),
        "most likely token, mask": (Sampling(), mask),
        "temperature, top-k, top-p, mask": (Sampling(0.7, 40, 0.95, seed=0), mask),
        "most likely token, penalties": (Sampling(presence_penalty=0.5, frequency_penalty=0.5), None),
        "most likely token, bias": (Sampling(logit_bias={5: 1.0}), None),
    }
    for name, (sampling, given) in cases.items():
        sampler = Sampler(sampling)
        print(f"{name:36} {microseconds(lambda s=sampler, m=given: s.next(logits, m)):8.1f} us")  # type: ignore[misc]
    print(f"{'20 log probabilities':36} {microseconds(lambda: log_probabilities(logits, 3, 20)):8.1f} us")


def print_grammar(tokenizer: Tokenizer) -> None:
    start = time.perf_counter()
    grammars = Grammars(tokenizer)
    grammars.json_schema({"type": "null"})
    print(f"{'tokenizer, once':36} {(time.perf_counter() - start) * 1e3:8.1f} ms")
    variants = ({**PERSON, "minProperties": 1, "maxProperties": 4 + i} for i in range(20))
    print(f"{'a schema':36} {microseconds(lambda: grammars.json_schema(next(variants)), 20) / 1e3:8.1f} ms")
    new = grammars.json_schema(PERSON)
    print(f"{'a schema that was kept':36} {microseconds(lambda: grammars.json_schema(PERSON)):8.1f} us")
    masks, accepts = [], []
    for _ in range(20):
        constraint = new()
        for token in tokenizer.encode(TEXT, add_bos=False):
            times = [time.perf_counter()]
            constraint.mask()
            times.append(time.perf_counter())
            constraint.accept(token)
            times.append(time.perf_counter())
            masks.append(times[1] - times[0])
            accepts.append(times[2] - times[1])
    for name, found in (("mask", masks), ("accept", accepts)):
        print(f"{name:36} {statistics.median(found) * 1e6:8.1f} us, most {max(found) * 1e6:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2", help="as of `airllm generate`")
    opened = open_tokenizer(locate(parser.parse_args().model))
    print(f"{len(opened)} tokens; medians")
    print_sampler(len(opened))
    print_grammar(opened)
