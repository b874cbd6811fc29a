"""Tokens per second of 1 to 16 sequences at once: this engine and llama.cpp, models of real shapes.

    python benchmarks/bench_batches.py [--shapes llama-3.2-1b:16] [--formats q4_k_m,q8_0] [--sequences 1,8,16]
        [--llama-cpp PYTHON] [--add]

The files, engines and turns are those of bench_models.py. Each sequence has a prompt of its own, of 64
tokens, which is not timed; then each pass takes the next token of all. Logits are computed, nothing is
sampled. "of one" is the rate as a multiple of that of one sequence in the same round.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import bench_models, engine_peers, record
from benchmarks.bench_engine import Case, Round, both, rate, split, verdict, versions
from benchmarks.engine_peers import Engine

PROMPT, STEPS, CONTEXT = 64, 16, 128  # tokens of a sequence: its prompt, those that are timed, room for both
WANTED, WANTED_OF_ONE, MOST = 1.3, 3.0, 16  # times llama.cpp, times one sequence; with that many sequences


def main() -> None:
    given = options()
    cases = [measure_case(*each, given) for each in bench_models.wanted_models(given)]
    cases = bench_models.with_stored(cases, given)
    about = (
        f"Models of real shapes with random weights, {given.threads} threads, "
        f"{bench_models.rounds_of(cases)} rounds. Tokens per second of all sequences; ratios of the first "
        f"half of the rounds and the second. {', '.join(versions(cases))}."
    )
    titles = ["model", "sequences", "airllm", "llama.cpp", "vs llama.cpp", "of one", "verdict"]
    rows = [row_of(case, count) for case in cases for count in case["rounds"][0]]
    record.write(given.name, about, record.markdown(titles, rows), {"cases": cases}, given.output)


def options() -> Any:
    parser = bench_models.parser(__doc__ or "")
    parser.set_defaults(formats="q4_k_m", rounds=6, name="batches")
    parser.add_argument("--sequences", default="1,2,4,8,9,16", help="default: %(default)s")
    given = bench_models.parse(parser)
    given.sequences = [int(each) for each in given.sequences.split(",")]
    return given


def measure_case(name: str, layers: int, format: str, given: Any) -> Case:
    """The rates of both engines for one file, by number of sequences, in all rounds."""
    path = bench_models.file_of(name, layers, format, given.models)
    print(path.name, file=sys.stderr)
    most = max(given.sequences)
    with ExitStack() as undo:
        engines = {"airllm": Engine(sys.executable, "airllm", path, given.threads)}
        if given.llama_cpp:
            shared = {"flash": True, "sequences": most, "context": most * CONTEXT}
            engines["llama_cpp"] = Engine(given.llama_cpp, "llama_cpp", path, given.threads, **shared)
        for engine in engines.values():
            undo.callback(engine.close)
        rounds = [round_of(engines, given.sequences) for _ in range(given.rounds)]
        return {
            "model": f"{name}, {layers} layers, {format}",
            "versions": {side: engine.version for side, engine in engines.items()},
            "rounds": rounds,
        }


def round_of(engines: dict[str, Engine], counts: list[int]) -> Round:
    found: Round = {}
    for count in counts:
        prompts = [[5 + (7 * i + j) % 200 for j in range(PROMPT)] for i in range(count)]
        request = {"do": "together", "prompts": prompts, "steps": STEPS}
        times = engine_peers.in_turn(engines, request)
        found[str(count)] = {side: count * STEPS / seconds for side, seconds in times.items()}
    return found


def row_of(case: Case, count: str) -> list[str]:
    rounds = case["rounds"]
    sides = ("airllm", "llama_cpp")
    rates = [bench_models.faster(case, count, side) for side in sides]
    peer = "llama_cpp" in rounds[0][count]
    to_peer = split([each[count]["airllm"] / each[count]["llama_cpp"] for each in rounds]) if peer else None
    of_one = None
    if "1" in rounds[0]:
        of_one = split([each[count]["airllm"] / each["1"]["airllm"] for each in rounds])
    verdicts = ""
    if int(count) == MOST:
        verdicts = f"{verdict(to_peer, WANTED)}, {verdict(of_one, WANTED_OF_ONE)}"
    return [case["model"], count, *map(rate, rates), both(to_peer), both(of_one), verdicts]


if __name__ == "__main__":
    main()
