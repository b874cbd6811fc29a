"""Runs every benchmark short and compares it with the stored tables: says what became slower or faster.

    python -m benchmarks.watch [BENCHMARK ...] [--llama-cpp PYTHON] [--llama-server BINARY]

Only ratios to a peer are compared, never times: both sides take turns, so a slow machine slows both. A range
has both halves of a run and its quartiles. A ratio moved if its range now and its range in the table do not
meet, with a margin between them. A benchmark in which something moved runs once more, and then both runs make
the range. `--output FOLDER` keeps the tables of the runs; `--measured FOLDER` compares
such tables, and runs nothing.

Ends with 0 if nothing became slower; 1 if something did, on the machine of its table; 2 if a benchmark has
no ratio to compare, or became slower beside a table of another machine, where it may be the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import record
from benchmarks.watch.report import print_found, print_moves, print_other_machines
from benchmarks.watch.run import watch
from benchmarks.watch.watched import NOT_WATCHED, WATCHED

PEERS = {"llama_cpp": "PYTHON", "ik_llama_cpp": "PYTHON", "llama_server": "BINARY"}
SLOWER, NOT_COMPARED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for each in given.benchmarks:
            found.append(watch(each, given.output or Path(folder), given))
            print_found(found[-1], given.margin)
    print_moves(found, given.margin)
    print_other_machines(found, given.margin)
    print("Not watched: " + "; ".join(f"{script} {why}" for script, why in NOT_WATCHED.items()))
    slower = [each for each in found if each.moved(given.margin, -1)]
    if any(each.same_machine for each in slower):
        return SLOWER
    return NOT_COMPARED if slower or not all(each.moves for each in found) else 0


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.watch", description=__doc__, formatter_class=form)
    names = {each.table: each for each in WATCHED}
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"all, or of {', '.join(names)}")
    for peer, what in PEERS.items():
        parser.add_argument(f"--{peer.replace('_', '-')}", metavar=what, help="see benchmarks/README.md")
    margin = "between two ranges, as a share (default: %(default)s)"
    parser.add_argument("--margin", type=float, default=0.05, help=margin)
    parser.add_argument("--once", action="store_true", help="no second run where something moved")
    parser.add_argument("--stored", type=Path, default=record.RESULTS, help="default: results/")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep the tables of the runs there")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="compare its tables, and run nothing")
    given = parser.parse_args(arguments)
    if unknown := set(given.benchmarks) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected of {', '.join(names)}")
    given.benchmarks = [names[name] for name in given.benchmarks or names]
    return given


if __name__ == "__main__":
    sys.exit(main())
