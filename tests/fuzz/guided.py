"""Fuzzing that coverage guides: libFuzzer, by the package atheris, keeps the inputs that reach new lines.

python -m tests.fuzz --guided starts this file for each target. libFuzzer ends its process at a finding.
The inputs that it keeps are in `build/fuzz/guided/TARGET`, where the next run begins.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

_SLOWER = 5  # times, because of the counting


def run(names: Iterable[str], seconds: float, seed: int, findings: Path) -> int:
    """Fuzz each target for so many seconds; 1 if one has a finding."""
    options = [f"{min(seconds, 1e6):.0f}", str(seed or 1), str(findings)]
    return max([_start(name, options) for name in names])


def _start(name: str, options: list[str]) -> int:
    """1 if there was a finding. The folder of the inputs is removed here: libFuzzer ends its process."""
    with tempfile.TemporaryDirectory(prefix="airllm-fuzz-") as folder:
        call = [sys.executable, "-m", "tests.fuzz.guided", name, *options, folder]
        return int(subprocess.run(call).returncode != 0)


def fuzz(name: str, seconds: str, seed: str, findings: Path, folder: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["airllm"]):
        import airllm.engine.engine
        import airllm.serving.app
        import airllm.text.chat_template  # noqa: F401
        from tests.fuzz.runner import Finding, judge, limit_memory
        from tests.fuzz.targets import TARGETS
    target, kept = TARGETS[name], findings / "guided" / name
    kept.mkdir(parents=True, exist_ok=True)
    seeds = target.seeds(name)
    for i, data in enumerate(seeds):
        (kept / f"seed-{i}").write_bytes(data)
    use, path = target.prepare(folder), folder / target.file
    limit_memory(target.megabytes)

    def one(data: bytes) -> None:
        path.write_bytes(data)
        kind, place, report = judge(target, use, path)
        if kind == "findings":
            finding = Finding(name, place, report, data)
            finding.keep(findings)
            print(f"{name}: {place}\n  {finding.command}", flush=True)
            os._exit(1)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.3:
            return atheris.Mutate(data, most)
        return chance.choice(target.mutators)(data, chance, seeds)[:most]

    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=1048576", "-rss_limit_mb=0"]
    options += [f"-timeout={_SLOWER * target.seconds:g}", f"-artifact_prefix={findings}/{name}-", str(kept)]
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(*sys.argv[1:4], *map(Path, sys.argv[4:]))
