"""Runs a benchmark short, again if something moved, and finds the stored table to compare with."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.watch import compare
from benchmarks.watch.compare import Case, Move, Ratio
from benchmarks.watch.watched import WATCHED, Watched

SCRIPTS = Path(__file__).resolve().parents[1]
FIRST, AGAIN = "first", "again"  # folders of the two runs
MACHINE = ("cpu", "isa", "cores")  # what a machine is known by

Result = dict[str, Any]


class NotRun(RuntimeError):
    """Why there is nothing to compare."""


@dataclass
class Found:
    """What was found of a benchmark."""

    of: Watched
    date: str = ""  # of the stored table
    moves: list[Move] = field(default_factory=list)
    absent: dict[str, int] = field(default_factory=dict)  # peers, and how many cases lack them
    missing: list[str] = field(default_factory=list)  # what else was not measured, and why
    differences: list[str] = field(default_factory=list)  # of the machine and of peers' versions
    same_machine: bool = True
    failure: str = ""

    def moved(self, margin: float, direction: int) -> list[Move]:
        return [move for move in self.moves if move.direction(margin) == direction]


def watch(of: Watched, folder: Path, given: Namespace) -> Found:
    """Measure a benchmark, or read what --measured has of it, and compare it with its table."""
    try:
        if given.measured:
            return compared(of, results_in(given.measured, of.table), given)
        run(of, folder / FIRST, given)
        for path in tables_in(folder / AGAIN, of.table):
            path.unlink()  # of an earlier watch
        found = compared(of, results_in(folder, of.table), given)
        if not given.once and (found.moved(given.margin, -1) or found.moved(given.margin, 1)):
            print(f"{of.table}: something moved; once more", file=sys.stderr)
            run(of, folder / AGAIN, given)
            found = compared(of, results_in(folder, of.table), given)
        return found
    except NotRun as error:
        return Found(of, failure=str(error))


def compared(of: Watched, results: list[Result], given: Namespace) -> Found:
    """The ratios of one run or two beside the stored ones."""
    machine = results[0]["machine"]
    table = stored_table(of, given.stored, machine)
    stored, now, measured = ratios_of(of, table), ratios_of(of, results[0]), whats_of(of, results[0])
    for result in (each for each in results[1:] if _same(each["machine"], machine)):
        again = ratios_of(of, result)
        now = {case: ratio + again[case] if case in again else ratio for case, ratio in now.items()}
    return Found(
        of,
        table["date"],
        compare.moves(stored, now),
        compare.missing(stored, now, measured),
        [each for each in results[0].get("missing", ()) if each not in of.peers],
        compare.differences(table["machine"], machine, MACHINE),
        _same(table["machine"], machine),
    )


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[key] == other[key] for key in MACHINE)


def ratios_of(of: Watched, result: Result) -> dict[Case, Ratio]:
    return compare.ratios(result, of.read, of.peers)


def whats_of(of: Watched, result: Result) -> set[str]:
    return {what for what, _ in of.read(result)}


def run(of: Watched, folder: Path, given: Namespace) -> None:
    """One short run, whose table goes to the folder."""
    command = [sys.executable, str(SCRIPTS / of.script), *shlex.split(of.short), "--output", str(folder)]
    for name in of.options:
        if value := getattr(given, name):
            command += [f"--{name.replace('_', '-')}", value]
    print(f"{of.table}: {of.script} {of.short}", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NotRun(lines[-1] if lines else f"{of.script} ended with {done.returncode}")


# ------------------------------------------------------------------------------------------------- tables


def results_in(folder: Path, name: str) -> list[Result]:
    """What a benchmark has measured: its table in the folder itself, or those of one run or two."""
    tables = [path for part in (".", FIRST, AGAIN) for path in tables_in(folder / part, name)]
    if not tables:
        raise NotRun(f"{folder} has no {name}_*.json")
    return [load(path) for path in tables]


def stored_table(of: Watched, folder: Path, machine: Mapping[str, Any]) -> Result:
    """The table of this machine, or else the one of the nearest instruction set; of several, the newest."""
    tables = [load(path) for path in tables_in(folder, of.table)]
    if not tables:
        make = f"python benchmarks/{of.script} makes one"
        raise NotRun(f"{folder} has no {of.table}_*.json to compare with: {make}")

    def nearness(table: Result) -> tuple[bool | str, ...]:
        then = table["machine"]
        same = {key: then[key] == machine[key] for key in MACHINE}
        alike = vectors(then["isa"]) == vectors(machine["isa"])
        return same["isa"], alike, same["cpu"], same["cores"], table["date"]

    return max(tables, key=nearness)


def vectors(isa: str) -> str:
    """What sets with vectors of one width have in common: "avx512" of avx512_amx, "avx" of avx2."""
    found = re.match(r"avx512|[a-z]+", isa)
    return found[0] if found else isa


def tables_in(folder: Path, name: str) -> list[Path]:
    """The tables of a benchmark, without those of benchmarks whose names only begin alike."""
    others = tuple(f"{each.table}_" for each in WATCHED if each.table.startswith(f"{name}_"))
    return [path for path in sorted(folder.glob(f"{name}_*.json")) if not path.name.startswith(others)]


def load(path: Path) -> Result:
    found: Result = json.loads(path.read_text(encoding="utf-8"))
    return found
