"""Python code on an emulated CPU of 2008, without AVX; and at which instruction the emulator ended it.

Nothing of this process's environment reaches it. `OPENBLAS_CORETYPE=SkylakeX` there would make NumPy's own
library run AVX-512, and QEMU say "Illegal instruction" of a process in which airllm has done nothing wrong.
Each library has one thread: what is shown needs no more, and threads of an emulated process may meet races
of QEMU itself.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

EMULATOR = shutil.which("qemu-x86_64-static")
CPU = "Nehalem,+popcnt,+sse4.2"
THREADS = dict.fromkeys(("AIRLLM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# -S: no start-up files of site-packages, which may import anything; faulthandler says which line died.
INTERPRETER = (os.path.realpath(sys.executable), "-S", "-B", "-X", "faulthandler", "-c")
_BLOCK = "-" * 16  # the line before each block of QEMU's log
_FATAL = r"^--- SIG(?:ILL|SEGV|BUS|FPE|ABRT|TRAP) .*"


def run(code: str, *folders: str | Path) -> subprocess.CompletedProcess:
    """Run it with NumPy and the modules of these folders. What a signal ended says more on stderr."""
    done = _start(code, folders)
    if signal_of(done):
        done.stderr += _say_where(code, folders)
    return done


def signal_of(done: subprocess.CompletedProcess) -> int:
    """The signal that ended it; the emulator ends itself with that of the program. 0 if none did."""
    return max(0, -done.returncode)


def _start(code: str, folders: tuple, *options: str) -> subprocess.CompletedProcess:
    paths = os.pathsep.join(map(str, [*folders, Path(np.__file__).parents[1]]))
    assert EMULATOR
    command = [EMULATOR, "-cpu", CPU, *options, *INTERPRETER, code]
    how = {"capture_output": True, "text": True, "errors": "replace", "timeout": 300}
    return subprocess.run(command, env={"PYTHONPATH": paths, **THREADS}, preexec_fn=_leave_no_core, **how)


def _leave_no_core() -> None:
    """A core of the emulated program would be a file in the working folder."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _say_where(code: str, folders: tuple) -> str:
    """It is run again, with a log of what QEMU translates: what it translated last is what it died of."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        again = _start(code, folders, "-d", "in_asm", "-strace", "-D", str(log))
        if not signal_of(again):
            return f"\nAgain, with a log, no signal ends it. It prints:\n{again.stdout}{again.stderr}"
        return f"\nAgain, it ends at:\n{last_block(log.read_text(errors='replace'))}"


def last_block(log: str) -> str:
    """The block of instructions that was translated last before the first fatal signal, between the last
    files that were mapped and the signal. Python's handler runs after it, and ends the process by a second.
    """
    fatal = re.search(_FATAL, log, re.M)
    before = log[: fatal.start()] if fatal else log
    calls = re.findall(r"^\d+ (?:openat|mmap)\(.*", before, re.M)
    blocks = [part.strip() for part in before.split(_BLOCK) if part.lstrip().startswith("IN:")]
    return "\n".join([*calls[-6:], *blocks[-1:], fatal.group() if fatal else "the log has no fatal signal"])
