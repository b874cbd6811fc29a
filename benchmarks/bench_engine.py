"""Tokens per second of the engine, llama.cpp and ik_llama.cpp: the same files, equal threads.

    python benchmarks/bench_engine.py [--llama-cpp PYTHON] [--ik-llama-cpp PYTHON] [--formats q4_1,f16]

Each engine runs in its own process with its file loaded, and takes its turn while the others sleep: two
OpenMP runtimes in one process would compete for the cores. PYTHON is the interpreter of an environment with
llama-cpp-python (from source: its wheels are not built for this CPU) or ik-llama-cpp-python. The table shows
both with fused attention on or off, whichever is faster.

Decode is 64 tokens, one by one, after a prompt of 16; prefill is 512 tokens at once. The tokens are from a
real text; nothing is sampled. airllm reads each file from disk once, as after a boot. From then on, the file
is in the page cache, in large pages, for all engines. A ratio is the median over the rounds, each with both
engines in the same seconds, given for the first half of the rounds / the second. "of read": the bytes of the
file's tensors times tokens per second, as a share of the memory bandwidth, which is measured in turn too.
"budget": the layers are read from the file, with a memory limit of a quarter of its size. "start": from
process start to the logits of the first token, with the file in the page cache.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm.backends import open_backend
from airllm.bench import measure, op_benchmark
from airllm.bench.report import duration, figures
from airllm.files import smollm2
from airllm.files.open_weights import open_weights
from airllm.writable import to_disk
from benchmarks import engine_peers, record
from benchmarks.engine_peers import Engine, NoEngine

FORMATS = ("q4_1", "q4_0", "q8_0", "f16")
PEERS = ("llama_cpp", "ik_llama_cpp")
AFTER, DECODED, PREFILLED = 16, 64, 512
STARTS = 5
WANTED = {  # target speed relative to a peer
    ("decode", "llama_cpp"): 1.5,
    ("decode", "ik_llama_cpp"): 1.1,
    ("prefill", "llama_cpp"): 1.2,
    ("prefill", "ik_llama_cpp"): 1.0,
    ("budget", "airllm"): 0.5,
}
AIRLLM_4 = 0.5  # tokens per second of AirLLM 4.0 on this model (CPU, float16 shards)
QUICK = 1.0  # seconds to the first token

Case = dict[str, Any]
Round = dict[str, dict[str, float]]  # each engine's figure for each timed case


def main() -> None:
    given = options(__doc__ or "")
    missing: list[str] = [side for side in PEERS if not getattr(given, side)]
    cases = []
    for name in given.formats:
        try:
            cases.append(measure_case(name, given, missing))
        except NoEngine as error:
            print(f"NOT MEASURED: {name}: {error}", file=sys.stderr)
            missing.append(f"{name} ({error})")
    about = (
        f"SmolLM2-135M-Instruct, {given.threads} threads, {given.rounds} rounds. Tokens per second, or time, "
        f"medians of all rounds; ratios of the first half and the second. {', '.join(versions(cases))}."
    )
    if missing:
        about += f" Not there: {', '.join(missing)}."
    titles = ["file", "what", "airllm", "llama.cpp", "ik_llama.cpp", "of read", "vs llama.cpp", "vs ik"]
    table = record.markdown([*titles, "verdict"], [row for case in cases for row in rows_of(case)])
    record.write("engine", about, table, {"cases": cases, "missing": missing}, given.output)


def options(description: str) -> Any:
    parser = engine_peers.options(description)
    given = parser.parse_args()
    try:
        given.formats = op_benchmark.choose_names("format", given.formats, FORMATS)
    except op_benchmark.WrongName as error:
        parser.exit(2, f"bench_engine.py: {error}\n")
    given.cpp = open_backend("cpp").module
    if not given.cpp:
        parser.exit(1, f"bench_engine.py: {open_backend('cpp').why_not}\n")
    given.probe = np.ones(measure.large_array_bytes() // 4, np.float32)
    return given


def versions(cases: Sequence[Case]) -> list[str]:
    sides = ("airllm", *PEERS)
    return sorted({f"{s} {v}" for case in cases for s, v in case["versions"].items() if s in sides})


def measure_case(name: str, given: Any, missing: list[str]) -> Case:
    """The figures of all engines for one file, in all rounds."""
    print(name, file=sys.stderr)
    path = engine_peers.model(name, given.models, given.llama_cpp)
    case: Case = {"format": name, "file": path.name, "bytes": path.stat().st_size}
    case["read_once"] = tensor_bytes(path)
    to_disk(path)
    with ExitStack() as undo:
        engines = dict(engines_of(path, given, missing))
        for engine in engines.values():
            undo.callback(engine.close)
        text = engines["airllm"].ask("tokens", text=(smollm2.cache_dir() / smollm2.TEXT).read_text())
        check_alike(engines, text[:AFTER])
        case["rounds"] = [round_of(given, engines, text) for _ in range(given.rounds)]
        case["versions"] = {side: engine.version for side, engine in engines.items()}
        case["peak"] = {side: engine.peak for side, engine in engines.items()}
    case["start"] = starts(path, given)
    return case


def engines_of(path: Path, given: Any, missing: list[str]) -> Iterator[tuple[str, Engine]]:
    """The available engines: the peers twice, and ours also with a memory budget."""
    yield "airllm", Engine(sys.executable, "airllm", path, given.threads)
    for side in PEERS:
        if python := engine_peers.python_of(side, given):
            yield side, Engine(python, side, path, given.threads)
            yield f"{side} flash", Engine(python, side, path, given.threads, flash=True)
    if given.no_budget:
        return
    quarter = path.stat().st_size // 4
    try:
        yield "budget", Engine(sys.executable, "airllm", path, given.threads, max_memory=quarter)
    except NoEngine as error:
        print(f"NOT MEASURED: {error}", file=sys.stderr)
        missing.append(f"a quarter of {path.name} ({error})")


def tensor_bytes(path: Path) -> int:
    """Bytes of the tensors that every token reads: here all, since the embeddings are also the output's."""
    with open_weights(path) as weights:
        return sum(weights.tensor(name).nbytes for name in weights.names())


def check_alike(engines: dict[str, Engine], tokens: list[int]) -> None:
    """Check that all engines agree: the best token of each must be among our best five."""
    engine_peers.in_turn(engines, time_feeding([], tokens))
    best = {name: engine.ask("best") for name, engine in engines.items()}
    for name, tokens in best.items():
        if tokens[0] not in best["airllm"]:
            raise AssertionError(f"{name} finds token {tokens[0]} best, expected one of {best['airllm']}")


def time_feeding(after: list[int], tokens: list[int], one_by_one: bool = False) -> dict[str, Any]:
    return {"do": "feed", "after": after, "tokens": tokens, "one_by_one": one_by_one}


def round_of(given: Any, engines: dict[str, Engine], text: list[int]) -> Round:
    """Tokens per second, and the memory's bytes per second before and after."""
    decode = time_feeding(text[:AFTER], text[AFTER : AFTER + DECODED], one_by_one=True)
    before = memory_rate(given)
    decoded = engine_peers.in_turn(engines, decode)
    memory = [before, memory_rate(given)]
    in_memory = {name: engine for name, engine in engines.items() if name != "budget"}
    prefilled = engine_peers.in_turn(in_memory, time_feeding([], text[:PREFILLED]))
    return {
        "decode": {side: DECODED / seconds for side, seconds in decoded.items()},
        "prefill": {side: PREFILLED / seconds for side, seconds in prefilled.items()},
        "read": {"memory": statistics.mean(memory)},
    }


def memory_rate(given: Any) -> float:
    """The memory's present bytes per second, with as many threads."""
    time.sleep(engine_peers.PAUSE)
    with measure.threads(given.threads):
        start = time.perf_counter()
        given.cpp.read(given.probe)
        return given.probe.nbytes / (time.perf_counter() - start)


def starts(path: Path, given: Any) -> dict[str, list[float]]:
    """Seconds from process start to the logits of the first token."""
    sides = {side: python for side in ("airllm", *PEERS) if (python := engine_peers.python_of(side, given))}
    prompt = "The capital of France is"
    return {
        side: [engine_peers.first_token(python, side, path, given.threads, prompt) for _ in range(STARTS)]
        for side, python in sides.items()
    }


# ------------------------------------------------------------------------------------------------ the table


def rows_of(case: Case) -> list[list[str]]:
    rows = [row_of(case, what) for what in ("decode", "prefill")]
    if "budget" in case["rounds"][0]["decode"]:
        rows.append(budget_row(case))
    times = {side: statistics.median(each) for side, each in case["start"].items()}
    met = "met" if times["airllm"] < QUICK else "missed"
    named = [duration(times[side]) if side in times else "-" for side in ("airllm", *PEERS)]
    return [*rows, [case["file"], "start", *named, "-", "-", "-", f"{met} ({duration(QUICK)})"]]


def row_of(case: Case, what: str) -> list[str]:
    rates = [faster(case, what, side) for side in ("airllm", *PEERS)]
    share = " / ".join(f"{each:.0%}" for each in shares_of_read(case)) if what == "decode" else "-"
    ratios = {peer: ratio_to(case, what, peer) for peer in PEERS}
    verdicts = ", ".join(verdict(ratio, WANTED[what, peer]) for peer, ratio in ratios.items())
    return [case["file"], what, *map(rate, rates), share, *map(both, ratios.values()), verdicts]


def verdict(ratios: list[float] | None, wanted: float) -> str:
    return f"{'met' if min(ratios) >= wanted else 'missed'} ({wanted:g}x)" if ratios else "no peer"


def budget_row(case: Case) -> list[str]:
    """Decoding with memory for a quarter of the file, compared with all in memory and with AirLLM 4.0."""
    rates = faster(case, "decode", "budget")
    ratios = split([each["decode"]["budget"] / each["decode"]["airllm"] for each in case["rounds"]])
    met = min(ratios) >= WANTED["budget", "airllm"] and statistics.median(rates or [0]) >= 100 * AIRLLM_4
    budget, memory = (case["peak"][side] >> 20 for side in ("budget", "airllm"))
    what = f"budget, decode (the process: {budget} MB at most; without a budget {memory})"
    text = f"{both(ratios)} of in memory: {'met' if met else 'missed'} (0.5x, {100 * AIRLLM_4:g}/s)"
    return [case["file"], what, rate(rates), *5 * ["-"], text]


def faster(case: Case, what: str, side: str) -> list[float] | None:
    """A side's rates, with fused attention if that was faster."""
    found = [
        [each[what][name] for each in case["rounds"]]
        for name in (side, f"{side} flash")
        if name in case["rounds"][0][what]
    ]
    return max(found, key=statistics.median) if found else None


def ratio_to(case: Case, what: str, peer: str) -> list[float] | None:
    theirs, ours = faster(case, what, peer), faster(case, what, "airllm")
    return split([our / their for our, their in zip(ours or [], theirs, strict=True)]) if theirs else None


def shares_of_read(case: Case) -> list[float]:
    """Decoding's share of the memory bandwidth."""
    return split([case["read_once"] * r["decode"]["airllm"] / r["read"]["memory"] for r in case["rounds"]])


def split(values: list[float]) -> list[float]:
    """The medians of the first and of the second half."""
    middle = (len(values) + 1) // 2
    return [statistics.median(part) for part in (values[:middle], values[middle:] or values)]


def rate(values: list[float] | None) -> str:
    return figures(statistics.median(values)) if values else "-"


def both(ratios: list[float] | None) -> str:
    return " / ".join(f"{figures(each)}x" for each in ratios) if ratios else "-"


if __name__ == "__main__":
    main()
