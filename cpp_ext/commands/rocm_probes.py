"""Probes for HIP: the compiler hipcc with the GPUs that it knows, and the driver of AMD's GPUs."""

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .probes import Finding, answer_of, first_error, first_line

GET_HIPCC = "install ROCm (Debian: hipcc), or set AIRLLM_HIPCC to its hipcc"
# One of each kind of GPU, from gfx9 to gfx12; Debian 12's compiler knows the first eight.
ARCHS = (
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx940", "gfx1010", "gfx1030", "gfx1036",
    "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151",
    "gfx1200", "gfx1201",
)  # fmt: skip
KERNEL = '#include <hip/hip_runtime.h>\nextern "C" __global__ void f(float* x) { *x = sqrtf(*x); }\n'


@dataclass(frozen=True)
class Toolkit:
    """A hipcc that runs, with the folders of HIP's headers and library."""

    hipcc: str
    version: str
    include: Path
    library: Path


def hipcc() -> Finding:
    """The hipcc for builds, from: AIRLLM_HIPCC, HIP_PATH, ROCM_PATH, PATH, /opt/rocm."""
    for name, inside in (("AIRLLM_HIPCC", ""), ("HIP_PATH", "/bin/hipcc"), ("ROCM_PATH", "/bin/hipcc")):
        if value := os.environ.get(name):
            if path := shutil.which(value + inside):
                return _hipcc_at(path)
            reason = f"{name}={value}: there is no program {value}{inside}"
            return Finding("hipcc", why_not=reason, remedy=f"correct or unset {name}")
    path = shutil.which("hipcc") or shutil.which("/opt/rocm/bin/hipcc")
    if not path:
        return Finding("hipcc", why_not="no hipcc on PATH or in /opt/rocm", remedy=GET_HIPCC)
    return _hipcc_at(path)


def _hipcc_at(path: str) -> Finding:
    answer = answer_of([path, "--version"])
    if version := re.search(r"HIP version: ([\d.]+)", answer.stdout):
        return Finding("hipcc", path, version[1])
    reason = f"{path} --version fails: {first_line(answer.stderr)}"
    return Finding("hipcc", path, why_not=reason, remedy=GET_HIPCC)


def runtime(found: Finding) -> Finding:
    """HIP's headers and its library, beside a hipcc."""
    kit = toolkit(found)
    if kit and (kit.include / "hip" / "hip_runtime.h").is_file() and kit.library.is_dir():
        return Finding("HIP runtime", str(kit.library), kit.version)
    reason = f"{found.path} has no hip/hip_runtime.h or no libamdhip64.so"
    return Finding("HIP runtime", why_not=reason, remedy=GET_HIPCC)


def toolkit(found: Finding) -> Toolkit | None:
    """The toolkit of a hipcc; None without its library."""
    root = Path(found.path).resolve().parent.parent
    asked = answer_of([str(Path(found.path).with_name("hipconfig")), "--path"]).stdout.strip()
    roots = [Path(asked), root] if asked else [root]
    for each in roots:
        for library in sorted(each.glob("lib*/**/libamdhip64.so")):
            return Toolkit(found.path, found.version, each / "include", library.parent)
    return None


def known_archs(hipcc: str) -> list[str]:
    """Those of ARCHS that this compiler compiles for: it needs their machine code and their library."""
    with tempfile.TemporaryDirectory(prefix="airllm-hip-") as folder, ThreadPoolExecutor() as pool:
        source = Path(folder) / "probe.hip"
        source.write_text(KERNEL)
        reasons = pool.map(lambda arch: _try(hipcc, source, arch), ARCHS)
        return [arch for arch, why in zip(ARCHS, reasons, strict=True) if not why]


def why_not_for(hipcc: str, arch: str) -> str:
    """Why this compiler does not compile for this GPU; "" if it does."""
    with tempfile.TemporaryDirectory(prefix="airllm-hip-") as folder:
        source = Path(folder) / "probe.hip"
        source.write_text(KERNEL)
        return _try(hipcc, source, arch)


def _try(hipcc: str, source: Path, arch: str) -> str:
    target = source.with_name(f"{arch}.o")
    call = [hipcc, "-x", "hip", f"--offload-arch={arch}", "--offload-device-only", "-c", str(source)]
    answer = answer_of([*call, "-o", str(target)])
    return first_error(answer.stderr) if answer.returncode else ""


DRIVER = Path("/dev/kfd")


def driver() -> Finding:
    """The driver of AMD's GPUs, by the device file that HIP opens."""
    if not DRIVER.exists():
        reason = f"no AMD driver (there is no {DRIVER})"
        return Finding("AMD driver", why_not=reason, remedy="install ROCm's driver, amdgpu, for this GPU")
    if not os.access(DRIVER, os.R_OK | os.W_OK):
        remedy = "add this user to the groups render and video"
        return Finding("AMD driver", str(DRIVER), why_not=f"{DRIVER} may not be opened", remedy=remedy)
    return Finding("AMD driver", str(DRIVER))
