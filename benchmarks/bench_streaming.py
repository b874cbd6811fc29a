"""What a token of a model larger than memory costs, with 1 and with 16 sequences.

    python benchmarks/bench_streaming.py [MODEL] [--available SIZE] [--sequences 1,16] [--tokens 3]

MODEL is a GGUF file larger than the memory. Without one, `synthetic_models` writes a Llama of 8B in q4_k_m,
5 GB, and deletes it afterwards. `--available` makes the machine small: the engine is told that so much memory
is available, and drops what it has read from the page cache. It is 2GB if MODEL is left out.

"disk": bytes a second of the groups of layers that are read for each token, one after another, without
computing. "read": bytes that the disk gave for a token (`read_bytes` of /proc/self/io). "of disk": these
bytes at the disk's speed, as a share of the time of a token. The first token, which reads all layers, is not
counted. The disk is measured before and after, since other machines may share it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import available
from airllm.memory.budget import Plan
from airllm.memory.estimate import parse_size
from airllm.memory.residency import Limited
from airllm.memory.token_cost import disk_speed
from airllm.readable import size
from benchmarks import record
from benchmarks.synthetic_models import SHAPES, write_model

PROMPT = list(range(1, 17))


def main() -> None:
    given = options()
    with ExitStack() as stack:
        path = given.model or stack.enter_context(model_of_8b())
        if given.available:
            available.available_memory = lambda: parse_size(given.available, "--available")
        engine = stack.enter_context(LayerWiseInferenceEngine(path))
        plan = streamed(engine)
        before = speed_of(plan)
        rows = [measure(engine, number, given.tokens) for number in given.sequences]
        disk = median([before, speed_of(plan)])
    titles = ["sequences", "token", "read", "of disk", "times one sequence"]
    lines = [
        [
            str(row["sequences"]),
            f"{row['seconds']:.2f} s",
            size(row["read"]),
            f"{row['read'] / disk / row['seconds']:.0%}",
            f"{row['seconds'] / rows[0]['seconds']:.2f}",
        ]
        for row in rows
    ]
    streams = sum(len(group) for group in plan.groups)
    about = (
        f"{path.name}: {streams} of {len(plan.group)} parts are read for each token, at {size(int(disk))}/s."
    )
    figures = {"disk": disk, "rows": rows}
    record.write("streaming", about, record.markdown(titles, lines), figures, given.output)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--available", metavar="SIZE", help="without it, what this machine has")
    parser.add_argument("--sequences", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--tokens", type=int, default=3, help="tokens that are timed")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder for the results")
    given = parser.parse_args()
    if given.model is None and given.available is None:
        given.available = "2GB"
    return given


@contextmanager
def model_of_8b() -> Iterator[Path]:
    """A model of 5 GB in the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_model(Path(folder) / "llama-3.1-8b.q4_k_m.gguf", SHAPES["llama-3.1-8b"], "q4_k_m")


def streamed(engine: LayerWiseInferenceEngine) -> Plan:
    """The plan for the next token. Exits if nothing is read from disk for it."""
    residency = engine.model.residency
    if not isinstance(residency, Limited) or not residency.plan.groups:
        sys.exit("the model fits in memory: set --available")
    return residency.plan


def speed_of(plan: Plan) -> float:
    """Bytes a second of the groups, the last first: the first ones are read already."""
    speed = disk_speed(piece for pieces in reversed(plan.pieces) for piece in pieces)
    return speed or sys.exit("the disk's speed cannot be measured: other processes have the file in memory")


def measure(engine: LayerWiseInferenceEngine, sequences: int, tokens: int) -> dict[str, Any]:
    """Seconds and bytes from disk of a token of each of so many sequences."""
    caches = [engine.new_cache() for _ in range(sequences)]
    engine.forward([PROMPT] * sequences, caches)
    engine.forward([[1]] * sequences, caches)
    seconds, read = [], bytes_read()
    for _ in range(tokens):
        start = time.perf_counter()
        engine.forward([[1]] * sequences, caches)
        seconds.append(time.perf_counter() - start)
    return {
        "sequences": sequences,
        "seconds": median(seconds),
        "read": (bytes_read() - read) // tokens,
    }


def bytes_read() -> int:
    """Bytes that the disk has given to this process."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


if __name__ == "__main__":
    main()
