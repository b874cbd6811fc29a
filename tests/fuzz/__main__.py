"""Fuzz what airllm reads: python -m tests.fuzz [TARGET...] --seconds 600 --seed 1

Every run begins with the seeds and the corpus. Status 1 says that there are findings.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.runner import FINDINGS, Outcome, inputs, listed, run
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each target")
    parser.add_argument("--inputs", type=int, help="of each target, besides seeds and corpus")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other inputs")
    parser.add_argument("--input", type=Path, help="run only this file")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="where inputs of findings are kept")
    parser.add_argument(
        "--guided", action="store_true", help="let coverage guide it, with the package atheris"
    )
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"TARGET has {sorted(unknown)}, expected of {', '.join(TARGETS)}")
    if given.input is None and given.inputs is None and given.seconds >= 1e9:
        parser.error("it would never end: give --seconds or --inputs")
    if given.guided:
        from tests.fuzz import guided

        return guided.run(given.targets or TARGETS, given.seconds, given.seed, given.findings)
    return max(_run(name, given) for name in given.targets or TARGETS)


def _run(name: str, given: argparse.Namespace) -> int:
    target, start = TARGETS[name], time.monotonic()
    every = inputs(name, target, given.seed, given.inputs)
    if given.input:
        every = listed([given.input.read_bytes()])
    outcome = run(name, target, every, seconds=given.seconds, folder=given.findings)
    print(f"{name}: {_summary(outcome)}, {time.monotonic() - start:.1f} s", flush=True)
    for finding in outcome.findings.values():
        print(f"  {finding.place}\n    {finding.command}")
        if given.input:
            print(finding.report)
    return int(bool(outcome.findings))


def _summary(outcome: Outcome) -> str:
    total = sum(outcome.counts.values())
    return ", ".join([f"{total} inputs", *(f"{count} {what}" for what, count in outcome.counts.items())])


if __name__ == "__main__":
    sys.exit(main())
