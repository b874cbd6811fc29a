"""Prints what the watch has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from benchmarks import record
from benchmarks.watch.compare import Ratio
from benchmarks.watch.run import Found
from benchmarks.watch.watched import REMEDIES

TITLES = ("benchmark", "what", "peer", "", "then", "now", "change", "airllm's time", "peer's time")


def print_found(found: Found, margin: float) -> None:
    """A line for a benchmark, and one for each thing that was not compared, or not alike."""
    name = found.of.table
    if found.failure:
        print(f"{name}: NOT COMPARED: {found.failure}", flush=True)
        return
    changes = [move.change for move in found.moves]
    mean = f", together {geometric_mean(changes):.2f}x" if changes else ""
    slower, faster = (len(found.moved(margin, direction)) for direction in (-1, 1))
    none = "" if changes else "NOT COMPARED: "
    line = f"{none}{len(changes)} ratios beside those of {found.date}{mean}: {slower} slower, {faster} faster"
    print(f"{name}: {line}", flush=True)
    for peer, count in found.absent.items():
        remedy = REMEDIES.get(peer, f"{found.of.script} did not measure it")
        print(f"  NOT COMPARED with {peer}, which is not there: {count} ratios ({remedy})")
    for each in found.missing:
        print(f"  NOT MEASURED: {each}")
    if found.differences:
        only = "" if found.same_machine else ". Another machine: only ratios are compared"
        print(f"  not alike: {'; '.join(found.differences)}{only}", flush=True)


def print_moves(found: Sequence[Found], margin: float) -> None:
    """The table of what moved, the slower first."""
    rows = [row for direction in (-1, 1) for row in _rows(found, margin, direction)]
    if rows:
        print("\n" + record.markdown(TITLES, rows))


def print_other_machines(found: Sequence[Found], margin: float) -> None:
    """The benchmarks that became slower beside tables of another machine, and what to do."""
    moved = [each.of for each in found if each.moved(margin, -1) and not each.same_machine]
    if moved:
        names = ", ".join(of.table for of in moved)
        print(f"Slower beside tables of another machine, which may be why: {names}. Tables of this one tell:")
        print("\n".join(f"  python benchmarks/{of.script}" for of in moved) + "\n")


def _rows(found: Sequence[Found], margin: float, direction: int) -> Iterator[list[str]]:
    pairs = [(each, move) for each in found for move in each.moved(margin, direction)]
    for each, move in sorted(pairs, key=lambda pair: pair[1].change):
        times = (move.now.ours / move.stored.ours, move.now.peer / move.stored.peer)
        of_times = [f"{time:.2f}x" if each.same_machine else "-" for time in times]
        word = "faster" if direction > 0 else "SLOWER" if each.same_machine else "slower"
        ranges = [_range(move.stored), _range(move.now)]
        yield [each.of.table, move.what, move.peer, word, *ranges, f"{move.change:.2f}x", *of_times]


def _range(ratio: Ratio) -> str:
    """1.64-2.00x."""
    low, high = f"{ratio.low:.2f}", f"{ratio.high:.2f}"
    return f"{low}x" if low == high else f"{low}-{high}x"
