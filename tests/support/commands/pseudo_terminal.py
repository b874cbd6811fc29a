"""A terminal of a process's own."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]


class Terminal:
    """`airllm` at a terminal of its own."""

    def __init__(self, *arguments: object, state: Path, module: bool = True):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}",
            "AIRLLM_HISTORY": str(state / "history"),
            "AIRLLM_BACKEND": "python",
            "OPENBLAS_NUM_THREADS": "1",
            "TERM": "xterm",
        }
        command = [sys.executable, *["-m", "airllm"][: 2 * module], *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C there is a signal
        )
        os.close(slave)
        self.seen = ""

    def until(self, text: str, seconds: float = 40) -> str:
        """What it shows until this comes; the next call begins behind it."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} did not come: {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert text in self.seen, self.seen
        found, _, self.seen = self.seen.partition(text)
        return found

    def rest(self) -> str:
        """What it has shown since, once it has ended."""
        while select.select([self._master], [], [], 0.2)[0]:
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                break
        return self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: object, state: Path, module: bool = True):
    found = Terminal(*arguments, state=state, module=module)
    try:
        yield found
    finally:
        found.close()
