"""Shared parts of the benchmarks: options, and the Markdown and JSON files in results/."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airllm import tensor_ops
from airllm.backends.devices import usable_cores
from airllm.bench import activations, measure

# the times of `airllm tune` must not decide which backend is measured here
os.environ["AIRLLM_TUNING"] = "off"
tensor_ops.set_backend("auto")

RESULTS = Path(__file__).resolve().parent / "results"


def parser_of(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="for every library (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for each call, in all (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="folder for the results (default: results/)"
    )
    return parser


def real_input() -> activations.Data:
    """The real model's values, or random ones, which are reported and named in the results."""
    data = activations.load_or_random()
    print(f"Input: {data.source}" if data.real else f"NOT REAL INPUT: {data.source}, because: {data.why_not}")
    return data


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, the first column aligned left and the others right."""
    lines = [titles, [":--", *["--:"] * (len(titles) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def path_of(name: str, folder: Path) -> Path:
    """Where the table of this name is, for this machine's CPU."""
    machine = measure.machine()
    cpu = re.sub(r"\W+", "_", f"{machine['cpu']} {machine['isa']}").strip("_").lower()
    return folder / f"{name}_{cpu}.md"


def stored(name: str, folder: Path) -> dict[str, Any] | None:
    """The figures of the table of this name for this machine's CPU, if it is there."""
    path = path_of(name, folder).with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write(name: str, about: str, table: str, result: dict[str, Any], folder: Path) -> None:
    """Print the table, and save it with its figures as NAME_CPU.md and .json."""
    machine = measure.machine()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine} | result
    versions = ", ".join(f"{library} {version}" for library, version in machine["versions"].items())
    where = f"{machine['cpu']} ({machine['isa']}), {machine['cores']} cores, {versions}, {result['date']}"
    path = path_of(name, folder)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {name}\n\n{where}.\n\n{about}\n\n{table}", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{about}\n\n{table}\nWritten to {path} and .json")
