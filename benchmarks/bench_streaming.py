"""What a token of a model larger than memory costs, with 1 and with 16 sequences.

    python benchmarks/bench_streaming.py [MODEL] [--available 17GB,all] [--sequences 1,16]

MODEL is a GGUF file larger than the memory. Without one, `synthetic_models` writes a Llama of 8B in q4_k_m,
5 GB, and deletes it afterwards. `--available` makes the machine small: the engine is told that so much memory
is available, and drops what it has read from the page cache. It is 2GB if MODEL is left out, else what the
machine has.

"disk": bytes a second that the disk gives if the parts of the file that are read for each token are read in
the order of the file, past the page cache (O_DIRECT), without computing. "read": bytes that the disk gave for
a token (`read_bytes` of /proc/self/io). "of disk": these bytes at the disk's speed, as a share of the time of
a token. All these parts are read, since some disks give more for a second than they do for longer. Figures
are medians. The first token, which reads all layers, is not counted. Other machines may share the disk: so it
is measured in turns with the tokens.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.architectures import config_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.files.open_weights import open_weights
from airllm.files.pages import merge
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory import available
from airllm.memory.budget import Plan
from airllm.memory.estimate import parse_size
from airllm.memory.residency import Limited
from airllm.memory.token_cost import TokenCost, token_cost
from airllm.readable import size
from benchmarks import record
from benchmarks.synthetic_models import SHAPES, write_model

PROMPT = [1, 2, 3, 4]
_BLOCKS = (8 << 20, 32 << 20)  # bytes of a read
_PAGE = 4096  # O_DIRECT reads whole ones


def main() -> None:
    given = options()
    with ExitStack() as stack:
        path = given.model or stack.enter_context(model_of_8b())
        rows = [row for memory in given.available for row in measure_with(memory, path, given)]
    about = f"{path.name}, {size(path.stat().st_size)}. Each machine: what it says before, then what it does."
    record.write("streaming", about, table_of(rows), {"rows": rows}, given.output)


def measure_with(memory: str, path: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of sequences, on a machine with so much memory."""
    with ExitStack() as stack:
        if memory != "all":
            change = mock.patch.object(
                available, "available_memory", lambda: parse_size(memory, "--available")
            )
            stack.enter_context(change)
        cost = predict(path)
        engine = stack.enter_context(LayerWiseInferenceEngine(path))
        rows = [measure(engine, number, given) for number in given.sequences]
    told = asdict(cost) | {"seconds": cost.seconds}
    return [{"info": told, **row, "ratio": row["seconds"] / rows[0]["seconds"]} for row in rows]


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    titles = ["available", "stay", "info says", "sequences", "token", "read", "disk", "of disk", "times one"]
    return record.markdown(titles, [line_of(row, row["info"]) for row in rows])


def line_of(row: dict[str, Any], told: dict[str, Any]) -> list[str]:
    return [
        size(told["available"]),
        f"{told['stay']} of {told['parts']}",
        f"{size(told['bytes_read'])}, {told['seconds']:.1f} s",
        str(row["sequences"]),
        f"{row['seconds']:.2f} s",
        size(row["read"]),
        f"{size(int(row['disk']))}/s",
        f"{row['read'] / row['disk'] / row['seconds']:.0%}",
        f"{row['ratio']:.2f}",
    ]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--available", metavar="SIZES", help="such as 17GB,all; all: what this machine has")
    parser.add_argument("--sequences", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--tokens", type=int, default=2, help="tokens of a round")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of the disk and of some tokens")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder for the results")
    given = parser.parse_args()
    given.available = (given.available or ("all" if given.model else "2GB")).split(",")
    return given


@contextmanager
def model_of_8b() -> Iterator[Path]:
    """A model of 5 GB in the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_model(Path(folder) / "llama-3.1-8b.q4_k_m.gguf", SHAPES["llama-3.1-8b"], "q4_k_m")


def predict(path: Path) -> TokenCost:
    """What `airllm info` says. Exits if the model fits in memory."""
    with open_weights(path) as weights:
        cost = token_cost(NamedTensors(weights, config_of(weights)))
    return cost or sys.exit("the model fits in memory: set --available")


def plan_of(engine: LayerWiseInferenceEngine) -> Plan:
    """Which parts are read for the next token."""
    residency = engine.model.residency
    assert isinstance(residency, Limited)
    return residency.plan


def measure(engine: LayerWiseInferenceEngine, sequences: int, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes from disk of a token of each of so many sequences, and the disk's speed."""
    caches = [engine.new_cache() for _ in range(sequences)]
    engine.forward([PROMPT] * sequences, caches)
    seconds, disk, read = [], [], 0
    for _ in range(given.rounds):
        engine.forward([[1]] * sequences, caches)  # the first reads more, the next less: it was read ahead
        disk.append(sequential_speed(engine))
        engine.forward([[1]] * sequences, caches)
        before = bytes_read()
        for _ in range(given.tokens):
            start = time.perf_counter()
            engine.forward([[1]] * sequences, caches)
            seconds.append(time.perf_counter() - start)
            print(f"{sequences} sequences: {seconds[-1]:.2f} s, disk {size(int(disk[-1]))}/s", flush=True)
        read += bytes_read() - before
    return {
        "sequences": sequences,
        "seconds": median(seconds),
        "read": read // len(seconds),
        "disk": median(disk),
        "each": seconds,
        "disk_each": disk,
    }


def sequential_speed(engine: LayerWiseInferenceEngine) -> float:
    """Bytes a second of the parts that are read for each token, in the order of the file: of several sizes of
    a read, the fastest.
    """
    pieces = merge(piece for group in plan_of(engine).pieces for piece in group)
    places = [(piece.start // _PAGE * _PAGE, piece.stop) for piece in pieces]
    time.sleep(2)  # the engine reads ahead after a token
    return max(read_direct(engine.model.weights.path, places, block) for block in _BLOCKS)


def read_direct(path: Path, places: Sequence[tuple[int, int]], block: int) -> float:
    """Bytes a second of these places, past the page cache."""
    buffer, done = mmap.mmap(-1, block), 0
    buffer.madvise(mmap.MADV_HUGEPAGE)  # more bytes for each request to the disk
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    start = time.perf_counter()
    for begin, end in places:
        for at in range(begin, end, block):
            done += os.preadv(file, [buffer], at)
    seconds = time.perf_counter() - start
    os.close(file)
    return done / seconds


def bytes_read() -> int:
    """Bytes that the disk has given to this process."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


if __name__ == "__main__":
    main()
