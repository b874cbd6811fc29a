"""Runs inputs in children that have limits, and keeps what each finding needs to be seen again.

An input is made of a seed's number and its own number alone, so the parent can make the input on which a
child died. A child runs many inputs, and the next child goes on after one that ended it.
"""

import faulthandler
import hashlib
import json
import mmap
import os
import random
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.targets import Target

_PLACE = struct.Struct("<qd")  # the number of the input that a child runs, and since when
_GO_ON = 3  # the status of a child after which another one goes on
_MOST = 2000  # inputs of a child: what they leave in memory must not look like a finding
_AGAIN = 2  # runs of an input that took too long, before it is a finding: the machine may have been busy
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a message is one line, and controls no terminal
FINDINGS = Path("build/fuzz")


@dataclass
class Finding:
    """What came of an input that must not: the error or the signal, and where."""

    target: str
    place: str
    report: str
    data: bytes
    path: Path = Path()

    def keep(self, folder: Path) -> None:
        """Write the input, and beside it the report and the command that shows it again."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:12]}"
        self.path.write_bytes(self.data)
        self.path.with_suffix(".txt").write_text(f"{self.command}\n\n{self.place}\n{self.report}\n")

    @property
    def command(self) -> str:
        return f"python -m tests.fuzz {self.target} --input {self.path}"


@dataclass
class Outcome:
    """Counts of a run, and its findings: the first input of each place."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)


Inputs = Callable[[int], bytes | None]  # the input of a number; None if there are no more


def inputs(name: str, target: Target, seed: int, most: int | None = None) -> Inputs:
    """All inputs of a seed: first the seeds themselves, then at most so many that mutators make of them."""
    seeds = target.seeds(name)

    def make(number: int) -> bytes | None:
        if number < len(seeds):
            return seeds[number]
        if most is not None and number >= len(seeds) + most:
            return None
        chance = random.Random(f"{name} {seed} {number - len(seeds)}")
        data = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 1, 2))):
            data = chance.choice(target.mutators)(data, chance, seeds)
        return data

    return make


def listed(given: Sequence[bytes]) -> Inputs:
    """These inputs."""
    return lambda number: given[number] if number < len(given) else None


def run(
    name: str, target: Target, given: Inputs, *, seconds: float = 1e9, folder: Path = FINDINGS
) -> Outcome:
    """Run inputs until there are no more, or the time is up; findings go into `folder`."""
    outcome, end = Outcome(), time.monotonic() + seconds
    waiting = _Waiting(given)
    while time.monotonic() < end and not waiting.ended:
        died = _Child(name, target, waiting, end).watch(outcome)
        if died and died.place.startswith("takes more than") and not _is_slow(name, target, died.data):
            outcome.counts["slow once"] += 1
        elif died:
            outcome.findings.setdefault(died.place, died)
            outcome.counts["findings"] += 1
    for finding in outcome.findings.values():
        finding.keep(folder)
    return outcome


def _is_slow(name: str, target: Target, data: bytes) -> bool:
    """Whether an input takes too long again, by itself."""
    return all(
        _Child(name, target, _Waiting(listed([data])), time.monotonic() + 1e9).watch(Outcome())
        for _ in range(_AGAIN)
    )


class _Waiting:
    """The inputs that are left: a child takes them, and the parent passes over what the child has taken."""

    def __init__(self, given: Inputs):
        self.given, self.next, self.ended = given, 0, False

    def take(self) -> bytes | None:
        """The next input; None if there are no more."""
        self.next += 1
        return self.given(self.next - 1)


class _Child:
    """A forked process that runs inputs. What it prints, it prints into a file. Its folder is removed by the
    parent: a child that a signal ends removes nothing.
    """

    def __init__(self, name: str, target: Target, given: _Waiting, end: float):
        self.name, self.target, self.given, self.end = name, target, given, end
        self._shared = mmap.mmap(-1, _PLACE.size)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115

    def watch(self, outcome: Outcome) -> Finding | None:
        """Start it, read what it reports, and wait for its end; what ended it, if that was an input."""
        with tempfile.TemporaryDirectory(prefix="airllm-fuzz-") as folder:
            return self._watch(Path(folder), outcome)

    def _watch(self, folder: Path, outcome: Outcome) -> Finding | None:
        reports, writing = os.pipe()
        self._place(self.given.next, 0.0)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(reports)
            self._run_and_exit(folder, writing)
        os.close(writing)
        slow = self._read_reports(reports, child, outcome)
        _, status = os.waitpid(child, 0)
        count, _ = _PLACE.unpack(self._shared)
        if status and count == self.given.next:
            raise RuntimeError(
                f"{self.name}: a child {_describe(status)} between inputs: {self._last_words()}"
            )
        self.given.next = count
        if os.waitstatus_to_exitcode(status) in (0, _GO_ON):
            self.given.ended = not status
            return None
        place = f"takes more than {self.target.seconds:g} s" if slow else _describe(status)
        data = self.given.given(count - 1)
        assert data is not None
        return Finding(self.name, place, self._last_words(), data)

    def _read_reports(self, reports: int, child: int, outcome: Outcome) -> bool:
        """Add to the outcome until the child ends; True if it had to be ended."""
        slow = False
        with os.fdopen(reports, "rb", buffering=0) as pipe:
            rest = b""
            while True:
                ready, _, _ = select.select([pipe], [], [], 0.2)
                if ready and not (part := pipe.read(1 << 16)):
                    return slow
                *lines, rest = (rest + part).split(b"\n") if ready else ([], rest)
                for line in lines if ready else ():
                    self._add(json.loads(line), outcome)
                _, since = _PLACE.unpack(self._shared)
                if since and not slow and time.monotonic() - since > self.target.seconds:
                    slow = True
                    os.kill(child, signal.SIGKILL)

    def _add(self, report: dict[str, Any], outcome: Outcome) -> None:
        outcome.counts.update(report["counts"])
        for place, text, data in report["findings"]:
            if place not in outcome.findings:
                outcome.findings[place] = Finding(self.name, place, text, bytes.fromhex(data))

    def _last_words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-8000:]

    def _place(self, number: int, since: float) -> None:
        self._shared[:] = _PLACE.pack(number, since)

    # ---- in the child ----

    def _run_and_exit(self, folder: Path, writing: int) -> None:
        status = 1
        try:
            os.dup2(self._said.fileno(), 1)
            os.dup2(self._said.fileno(), 2)
            _forget_handlers()
            faulthandler.enable(2)
            status = 0 if self._run(folder, writing) else _GO_ON
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _run(self, folder: Path, writing: int) -> bool:
        """True if there is no more input, or no more time."""
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        use = self.target.prepare(folder)
        limit_memory(self.target.megabytes)
        path, seen = folder / self.target.file, set[str]()
        for _ in range(_MOST):
            if time.monotonic() > self.end or (data := self.given.take()) is None:
                return True
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            self._place(self.given.next, time.monotonic())
            found = judge(self.target, use, path)
            self._place(self.given.next, 0.0)
            report: dict[str, Any] = {"counts": {found[0]: 1}, "findings": []}
            if found[0] == "findings" and found[1] not in seen:
                seen.add(found[1])
                report["findings"] = [[*found[1:], data.hex()]]
            _write_all(writing, json.dumps(report).encode() + b"\n")
        return False


def _forget_handlers() -> None:
    """A handler that a library has set in the parent must not keep a child alive that crashes."""
    faulthandler.disable()
    for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        signal.signal(fatal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def judge(target: Target, use: Any, path: Path) -> tuple[str, str, str]:
    """What comes of an input: "accepted", "refused" or "findings"; of a finding its place and its text."""
    try:
        use(path)
    except BaseException as error:
        kind, text = type(error).__name__, str(error)
        names_file = path.name in text or str(path.parent) in text
        if "MemoryError" not in text and not _CONTROL.search(text) and (
            kind in target.others or (kind in target.errors and names_file)
        ):  # fmt: skip
            return "refused", "", ""
        return "findings", _place_of(error), traceback.format_exc()[-8000:]
    return "accepted", "", ""


def _place_of(error: BaseException) -> str:
    """The error's type, and the innermost line of airllm that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "/airllm/" in each.filename] or frames
    at = own[-1]
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}"


def limit_memory(megabytes: int) -> None:
    """Let this process have so much more memory than now; but address sanitizer takes terabytes."""
    if "libasan" in os.environ.get("LD_PRELOAD", "") or not os.path.exists("/proc/self/statm"):
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
