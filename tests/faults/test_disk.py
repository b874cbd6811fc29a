"""Disks that are full: what was written before stays, nothing is left over, and the error names the file."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from airllm.backends import config, tuning_file
from airllm.convert.quantize import quantize
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import published, speaking_model, tiny_gguf

resource = pytest.importorskip("resource")
ROOM = 10_000  # bytes; the files take more
NO_ROOM = "No space left on device|File too large|where .* are free"


@contextlib.contextmanager
def limited_files(folder: Path) -> Iterator[None]:
    """No file may be longer: writing fails in the middle, as on a full disk, also at its end (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """The rest of a small file system is filled (ENOSPC)."""
    filling = folder / "filling"
    room = shutil.disk_usage(folder).free - 8192
    filling.write_bytes(bytes(max(room, 0)))
    try:
        yield
    finally:
        filling.unlink()


@pytest.fixture(params=[limited_files, full_disk])
def disk(request, tmp_path) -> Iterator[tuple[Path, Callable[[Path], contextlib.AbstractContextManager]]]:
    """A folder, and what makes its disk full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param is limited_files:
        yield folder, limited_files
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system of its own needs root")
    yield folder, full_disk
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # maps may be held still


Write = Callable[[Path], object]


def model_writer(tmp_path: Path) -> Write:
    source = tiny_gguf.write_gguf("llama3", tmp_path / "source.gguf")
    return lambda folder: quantize(source, folder / "new.gguf", "q8_0")


def cache_writer(tmp_path: Path) -> Write:
    model = speaking_model.write(tmp_path / "model")

    def write(folder: Path) -> None:
        with LayerWiseInferenceEngine(model, kv_cache_dir=folder) as engine:
            engine.new_cache("talk")

    return write


def tuning_writer(tmp_path: Path) -> Write:
    point = tuning_file.Point({"x": (1, 2)}, {"cpp": tuning_file.Time(1, 1, 1)})
    machine = tuning_file.this_machine({"cpp": "x" * 2 * ROOM})
    ops = {"silu": {"float32": (point,)}}
    return lambda folder: tuning_file.write(folder / "tuning.json", machine, "today", ops)


def configuration_writer(tmp_path: Path) -> Write:
    return lambda folder: config.write(folder / "backend.json", note="x" * 2 * ROOM)


def converted_writer(tmp_path: Path) -> Write:
    """Opens a folder of FP8, whose matrices are converted into the cache folder."""
    rng = np.random.default_rng(0)
    method = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [24, 20]}}
    make = functools.partial(published.fp8, scale_name="weight_scale_inv", block=(24, 20))
    stored, _ = published.write_folder(tmp_path, "llama2", method, lambda module, shape: make(rng, shape))

    def write(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRLLM_CACHE_DIR", str(folder))
            with LayerWiseInferenceEngine(stored, backend="python") as engine:
                engine.forward([0])

    return write


# What is written, with the beginning of the file's name.
WRITERS = {
    "quantize": (model_writer, "new.gguf"),
    "kv_cache_dir": (cache_writer, "talk.kv"),
    "tuning.json": (tuning_writer, "tuning.json"),
    "backend.json": (configuration_writer, "backend.json"),
    "converted weights": (converted_writer, "converted/stored-"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_whole_or_not_there(disk, name, tmp_path):
    """And as soon as there is room it is written."""
    folder, full = disk
    make, file = WRITERS[name]
    write = make(tmp_path)
    with full(folder):
        before = {path for path in folder.rglob("*") if path.is_file()}
        with pytest.raises((OSError, ValueError), match=NO_ROOM) as caught:
            write(folder)
        assert file in str(caught.value) or str(tmp_path / "stored") in str(caught.value)
        assert {path for path in folder.rglob("*") if path.is_file()} == before
    write(folder)
    (made,) = folder.glob(f"{file}*")
    assert made.stat().st_size > ROOM


def test_an_old_file_stays_as_it_was(disk, tmp_path):
    folder, full = disk
    config.write(folder / "backend.json", preferred_backend="cpp")
    with full(folder), pytest.raises(config.ConfigError, match="backend.json: cannot be written: "):
        configuration_writer(tmp_path)(folder)
    assert config.read(folder / "backend.json").preferred_backend == "cpp"
    assert [path.name for path in folder.iterdir()] == ["backend.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
def test_an_output_that_is_full_is_a_line(folder):
    command = [sys.executable, "-m", "airllm", "generate", str(folder), "he", "-n", "3"]
    environment = {**os.environ, "AIRLLM_BACKEND": "python", "PYTHONPATH": os.pathsep.join(sys.path)}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
