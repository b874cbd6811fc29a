"""Compare the speed of two checkouts, each with its own build: ops on the C++ backend, and the engine.

    python benchmarks/compare_checkouts.py ../before . [--model MODEL.gguf ...]

Each checkout runs in its own process, in turns, so that other load slows both. A ratio above 1 means that the
second is faster. Two processes of one build differ by up to 3 % in a prompt of a model, always the same way
as long as they run: call it several times before you believe less. AIRLLM_CPU_ISA applies to both. The model
is small and random, and created here; with `--model`, only these models are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

BLOCKS = {"q4_0": (32, 18, 1), "q8_0": (32, 34, 1), "q4_k": (256, 144, 2)}  # values, bytes, scales
FORMATS = (*BLOCKS, "f16")
WIDTH, HEADS, FEED_FORWARD, LAYERS, WORDS = 512, 8, 1536, 4, 2048
ROWS = (1, 64)
PROMPT, TOKENS = 128, 32


# ---- the model


def write_model(path: Path, form: str) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[form.upper()]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, shape in _shapes():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        else:
            writer.add_tensor(name, _random(shape, form), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from (("token_embd.weight", (WORDS, WIDTH)), ("output.weight", (WORDS, WIDTH)))
    yield "output_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        yield from ((f"blk.{layer}.attn_{each}.weight", (WIDTH, WIDTH)) for each in ("q", "k", "v", "output"))
        yield from ((f"blk.{layer}.{each}_norm.weight", (WIDTH,)) for each in ("attn", "ffn"))
        yield from ((f"blk.{layer}.ffn_{each}.weight", (FEED_FORWARD, WIDTH)) for each in ("gate", "up"))
        yield f"blk.{layer}.ffn_down.weight", (WIDTH, FEED_FORWARD)


def _random(shape: tuple[int, ...], form: str) -> np.ndarray:
    """Random weights below 1; for a block format, the bytes of blocks that begin with `scales` float16."""
    rng = np.random.default_rng(1)
    if form == "f16":
        return (rng.standard_normal(shape) * shape[1] ** -0.5).astype(np.float16)
    values, size, scales = BLOCKS[form]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // values, size), dtype=np.uint8)
    blocks[..., : 2 * scales].view(np.float16)[...] = 2.0**-12
    return blocks.reshape(*shape[:-1], -1)


# ---- a worker: one checkout


def cases(model: Path, form: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls to time, in the checkout that the worker imports."""
    from airllm import tensor_ops
    from airllm.formats import Quantized

    data = _random((FEED_FORWARD, WIDTH), form)
    weight = data if form == "f16" else Quantized(data, form)
    for rows in ROWS:
        x = np.random.default_rng(2).standard_normal((rows, WIDTH)).astype(np.float32)
        yield f"linear {form} {rows} rows", partial(tensor_ops.linear, x, weight, backend="cpp")
    yield from model_cases(model, form)


def model_cases(model: Path, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Prefill and decode of a model."""
    from airllm.layer_engine import LayerWiseInferenceEngine

    engine = LayerWiseInferenceEngine(model, backend="cpp")
    cache = engine.new_cache()
    prompt = [int(each) for each in np.random.default_rng(3).integers(0, WORDS, PROMPT)]

    def prefill() -> None:
        cache.truncate(0)
        engine.forward(prompt, cache)

    def decode() -> None:
        cache.truncate(1)
        for token in prompt[:TOKENS]:
            engine.forward([token], cache)

    yield f"prefill {name}", prefill
    yield f"decode {name}", decode


def work(folder: Path, models: list[Path]) -> None:
    """Answer the parent: the cases, then for each line with a case and seconds, the time of a call."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if models:
        found = dict(case for model in models for case in model_cases(model, model.stem))
    else:
        found = dict(case for form in FORMATS for case in cases(folder / f"{form}.gguf", form))
    print(json.dumps(list(found)), file=answers)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        found[name]()  # wake up what was idle
        times: list[float] = []
        until = time.perf_counter() + seconds
        while not times or time.perf_counter() < until:
            start = time.perf_counter()
            found[name]()
            times.append(time.perf_counter() - start)
        print(json.dumps(median(times)), file=answers)


# ---- the parent


class Worker:
    """The worker process of a checkout."""

    def __init__(self, checkout: Path, folder: Path, models: list[Path]):
        paths = f"{checkout}{os.pathsep}{checkout / 'cpp_ext'}"
        variables = {**os.environ, "PYTHONPATH": paths, "AIRLLM_TUNING": "off", "PYTHONSAFEPATH": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(folder)]
        command += [str(model.resolve()) for model in models]
        pipe = subprocess.PIPE
        self.checkout = checkout
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=variables, cwd=checkout
        )
        self.cases = self._answer()

    def time(self, *request: Any) -> float:
        print(json.dumps(request), file=self.process.stdin)
        return self._answer()

    def _answer(self) -> Any:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"the worker of {self.checkout} has ended: {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def compared(sides: list[Worker], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each side: medians of rounds; every other round begins with the second side."""
    found = {}
    for case in sides[0].cases:
        times: list[list[float]] = [[], []]
        for turn in range(rounds):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                times[side].append(sides[side].time(case, seconds))
        found[case] = [median(each) for each in times]
        before, after = found[case]
        print(
            f"{case:<24} {before * 1e6:>10.1f} us {after * 1e6:>10.1f} us {before / after:>7.3f}", flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts", type=Path, nargs=2, metavar="CHECKOUT", help="each with a build in place"
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn (default: %(default)s)")
    parser.add_argument("--model", type=Path, action="append", default=[], help="a GGUF file, or several")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMATS:
            write_model(Path(folder) / f"{form}.gguf", form)
        sides = [Worker(checkout.resolve(), Path(folder), options.model) for checkout in options.checkouts]
        found = compared(sides, options.rounds, options.seconds)
        for side in sides:
            side.close()
    print(f"geometric mean {geometric_mean(before / after for before, after in found.values()):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), list(map(Path, sys.argv[3:])))
    else:
        main()
