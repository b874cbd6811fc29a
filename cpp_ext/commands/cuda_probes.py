"""Probes for CUDA: the compiler nvcc with its toolkit, and the driver."""

import ctypes
import os
import re
import shutil
import site
import sys
from dataclasses import dataclass
from pathlib import Path

from .probes import Finding, answer_of, first_line

GET_NVCC = (
    "install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), "
    "or pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl; or set AIRLLM_NVCC to its nvcc"
)


@dataclass(frozen=True)
class Toolkit:
    """An nvcc that runs, and its toolkit."""

    nvcc: str
    version: str
    root: Path
    archs: tuple[str, ...]

    @property
    def include(self) -> Path:
        return self.root / "include"

    @property
    def cudart(self) -> Path | None:
        """The static CUDA runtime library."""
        folders = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
        places = (self.root / folder / "libcudart_static.a" for folder in folders)
        return next((place for place in places if place.is_file()), None)


def nvcc() -> Finding:
    """The nvcc for builds, from: AIRLLM_NVCC, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*, pip's."""
    named = _nvcc_by_name()
    if named is not None:
        return named
    path = next((str(place) for place in _nvcc_places() if place.is_file()), "")
    if not path:
        return Finding("nvcc", why_not="no nvcc on PATH, in /usr/local/cuda* or from pip", remedy=GET_NVCC)
    return _nvcc_at(path)


def _nvcc_by_name() -> Finding | None:
    """The nvcc that an environment variable names. If it is missing, no other one is tried."""
    for name, inside in (("AIRLLM_NVCC", ""), ("CUDA_HOME", "/bin/nvcc"), ("CUDA_PATH", "/bin/nvcc")):
        value = os.environ.get(name)
        if value:
            path = shutil.which(value + inside)
            reason = f"{name}={value}: there is no program {value}{inside}"
            return (
                _nvcc_at(path) if path else Finding("nvcc", why_not=reason, remedy=f"correct or unset {name}")
            )
    return None


def _nvcc_places():
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), key=_numbers, reverse=True)
    for folder in dict.fromkeys([*site.getsitepackages(), site.getusersitepackages()]):
        yield from sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"), key=_numbers, reverse=True)


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def _nvcc_at(path: str) -> Finding:
    answer = answer_of([path, "--version"])
    version = re.search(r"release ([\d.]+)", answer.stdout)
    if version:
        return Finding("nvcc", path, version[1], details=_archs(path))
    reason = f"{path} --version fails: {first_line(answer.stderr)}"
    return Finding("nvcc", path, why_not=reason, remedy=GET_NVCC)


def _archs(path: str) -> tuple[str, ...]:
    """The architectures that this nvcc supports, such as "90", oldest first."""
    listed = re.findall(r"compute_(\d+)", answer_of([path, "--list-gpu-arch"]).stdout)
    return tuple(sorted(set(listed), key=int))


def toolkit(found: Finding) -> Toolkit:
    """The toolkit of an nvcc, as reported by nvcc: the one on PATH may be a script or a link."""
    answer = answer_of([found.path, "--dryrun", "-x", "cu", os.devnull])
    top = re.search(r"^#\$ TOP=(.+)$", answer.stderr + answer.stdout, re.MULTILINE)
    root = Path(top[1].strip()) if top else Path(found.path).resolve().parent.parent
    return Toolkit(found.path, found.version, root.resolve(), found.details)


OLDEST = 12  # stream-ordered memory and C++17


def runtime(toolkit: Toolkit) -> Finding:
    """The toolkit's headers and static runtime library; pip's nvcc does not include them."""
    if int(toolkit.version.partition(".")[0]) < OLDEST:
        reason = f"{toolkit.nvcc} is of CUDA {toolkit.version}, expected {OLDEST}.0 or newer"
        return Finding("CUDA runtime", why_not=reason, remedy=GET_NVCC)
    if toolkit.cudart and (toolkit.include / "cuda_runtime_api.h").is_file():
        return Finding("CUDA runtime", str(toolkit.cudart), toolkit.version)
    reason = f"{toolkit.root} has no libcudart_static.a or no cuda_runtime_api.h"
    return Finding("CUDA runtime", why_not=reason, remedy="pip install nvidia-cuda-runtime nvidia-cuda-cccl")


DRIVER = {"win32": "nvcuda.dll"}.get(sys.platform, "libcuda.so.1")
GET_DRIVER = "install NVIDIA's driver for this GPU (Debian: nvidia-driver); nvidia-smi shows whether it works"


def driver() -> Finding:
    """NVIDIA's driver with its CUDA version, and the names of its GPUs as details."""
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError:
        reason = f"no NVIDIA driver ({DRIVER} cannot be loaded)"
        return Finding("CUDA driver", why_not=reason, remedy=GET_DRIVER)
    status = library.cuInit(0)
    if status:
        reason = f"the NVIDIA driver does not start: {_text(library, status)}"
        return Finding("CUDA driver", DRIVER, why_not=reason, remedy=GET_DRIVER)
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    number = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Finding("CUDA driver", DRIVER, number, details=_device_names(library))


def _text(library: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} ({status})"


def _device_names(library: ctypes.CDLL) -> tuple[str, ...]:
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_device_name(library, index) for index in range(count.value))


def _device_name(library: ctypes.CDLL, index: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    return name.value.decode(errors="replace")
