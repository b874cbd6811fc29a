"""llama.cpp's ggml for comparison: pip fetches its source, which is built once into the user's cache folder
and called in this process. `python -m benchmarks.ggml_peer` fetches, builds and prints the library's path.

It is built with this machine's own instructions, or only with those that AIRLLM_CPU_ISA allows our kernels.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from airllm.formats import FORMATS

VERSION = "0.3.36"  # of llama-cpp-python; its source archive contains llama.cpp
HERE = Path(__file__).resolve().parent
TYPES = {"f32": 0, "f16": 1, "bf16": 30} | {f.name: f.ggml_type for f in FORMATS.values()}

_AVX2 = ("GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2")
ON = {"": ("GGML_NATIVE",), "avx2": _AVX2, "avx_vnni": (*_AVX2, "GGML_AVX_VNNI")}  # by AIRLLM_CPU_ISA


class NoPeer(RuntimeError):
    """Why ggml is not available for the comparison."""


def folder() -> Path:
    return Path(platformdirs.user_cache_dir("airllm")) / "ggml_peer" / VERSION


def library() -> Path:
    """The built library; fetches and builds it if necessary. Raises NoPeer with the reason."""
    isa = os.environ.get("AIRLLM_CPU_ISA", "").lower()
    if isa not in ON:
        raise NoPeer(f"ggml is not built for AIRLLM_CPU_ISA={isa}, only for {', '.join(filter(None, ON))}")
    built = folder() / "-".join(filter(None, ("built", isa))) / "libggml_peer.so"
    source, project = folder() / "ggml", folder() / "project"
    if not source.exists():
        folder().mkdir(parents=True, exist_ok=True)
        _fetch(source)
    if _copy_sources(project):
        built.unlink(missing_ok=True)
    if not built.exists():
        _build(source, project, built.parent, ON[isa])
    return built


def _copy_sources(project: Path) -> bool:
    """Copy our files next to ggml, since checkouts may share the folder; return whether they changed."""
    project.mkdir(exist_ok=True)
    own = [HERE / name for name in ("CMakeLists.txt", "ggml_peer.c", "tile_config.h")]
    changed = [f for f in own if not (to := project / f.name).exists() or f.read_bytes() != to.read_bytes()]
    for file in changed:
        shutil.copy(file, project)
    return bool(changed)


def _fetch(to: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder()) as scratch:
        _run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python",
             f"llama-cpp-python=={VERSION}", "--dest", scratch)  # fmt: skip
        (archive,) = Path(scratch).glob("*.tar.gz")
        inside = "vendor/llama.cpp/ggml/"
        with tarfile.open(archive) as tar:
            members = [m for m in tar.getmembers() if inside in m.name]
            for member in members:
                member.name = member.name.split(inside, 1)[1]
            tar.extractall(f"{scratch}/ggml", members, filter="data")
        shutil.move(f"{scratch}/ggml", to)


def _build(source: Path, project: Path, build: Path, on: tuple[str, ...]) -> None:
    cmake = shutil.which("cmake")
    if not cmake:
        raise NoPeer("cmake is not installed (python -m pip install cmake)")
    options = ["-DGGML_NATIVE=OFF", *(f"-D{name}=ON" for name in on), "-DCMAKE_BUILD_TYPE=Release"]
    _run(cmake, "-S", str(project), "-B", str(build), f"-DGGML_SOURCE={source}", *options)
    _run(cmake, "--build", str(build), "-j", "--target", "ggml_peer")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise NoPeer(f"{' '.join(command[:4])} ... failed: {lines[-1] if lines else done.returncode}")


class Peer:
    """ggml's product of x (m, k) with quantized weights, which must outlive it."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(str(library()))
        self._library.peer_new.restype = ctypes.c_void_p
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._library.peer_new.argtypes = [
            ctypes.c_int, size, size, size, pointer, pointer, pointer, ctypes.c_int, ctypes.c_int,
            pointer
        ]  # fmt: skip
        for function in (self._library.peer_run, self._library.peer_free):
            function.argtypes, function.restype = [pointer], None

    def product(
        self,
        name: str,
        weight: np.ndarray,
        x: np.ndarray,
        threads: int,
        repacked: bool = False,
        like: Product | None = None,
    ) -> Product | None:
        """None if `repacked` is set and ggml cannot repack the weight on this CPU. `like`: a product whose
        repacked weight this one reads too.
        """
        y = np.empty((len(x), len(weight)), np.float32)
        made = self._library.peer_new(
            TYPES[name], len(x), len(weight), x.shape[1], weight.ctypes.data, x.ctypes.data, y.ctypes.data,
            threads, repacked, like and like._made
        )  # fmt: skip
        return Product(self._library, made, y, (weight, x, like)) if made else None


class Product:
    """A prebuilt graph; a call puts the result into `y`."""

    def __init__(self, library: Any, made: int, y: np.ndarray, keeps: tuple):
        self._library, self._made, self.y, self._keeps = library, made, y, keeps
        self._run = library.peer_run

    def __call__(self) -> np.ndarray:
        self._run(self._made)
        return self.y

    def __del__(self) -> None:
        self._library.peer_free(self._made)
