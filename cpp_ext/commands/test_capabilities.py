"""test_capabilities: what this machine can build and run, and what is missing for the rest."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import cuda_probes, probes
from .probes import Finding

HELP = "show which backends can be built and run here, and why not the others"


# Of each backend, the probe that says whether it runs now.
RUNNING = {
    "cuda": lambda: probes.module("tensor_ops_cuda"),
    "mlx": probes.mlx,
    "opencl": lambda: probes.module("tensor_ops_opencl"),
    "webgpu": probes.webgpu,
    "cpp": lambda: probes.module("tensor_ops_cpp"),
    "python": probes.numpy,
}


def add_options(parser) -> None:
    """There are none."""


def run(options) -> None:
    findings = Findings()
    for title, lines in findings.report().items():
        print(f"{title}:")
        print("".join(f"  {line}\n" for line in lines))
    print_table(findings.backends())


@dataclass(frozen=True)
class Capability:
    """A backend: what its build needs and lacks, and whether it runs now."""

    name: str
    missing: tuple[Finding, ...]
    runs: Finding
    build: str

    def row(self) -> tuple[str, str, str, str]:
        return self.name, "no" if self.missing else "yes", "yes" if self.runs else "no", self.remark()

    def remark(self) -> str:
        """The device, or why there is none and what to do about it."""
        if self.runs:
            return self.runs.version
        reasons = [str(finding) for finding in self.missing] or [str(self.runs)]
        if self.runs.why_not == probes.NOT_BUILT:
            reasons[-1] = reasons[-1] if self.missing else f"{probes.NOT_BUILT}: {self.build}"
        return "; ".join(reasons)


class Findings:
    """All probes of this machine, made once, together: each waits for processes of its own."""

    def __init__(self):
        with ThreadPoolExecutor() as pool:
            cpu, compilers = pool.submit(probes.cpu), pool.submit(probes.compilers)
            cpp, openmp = (
                pool.submit(probes.cpp_prerequisites),
                pool.submit(probes.openmp, probes.cxx_command()),
            )
            nvcc, opencl = pool.submit(cuda_probes.nvcc), pool.submit(probes.opencl)
            running = {name: pool.submit(probe) for name, probe in RUNNING.items()}
            self.driver = cuda_probes.driver()
        self.cpu, self.compilers, self.cpp = cpu.result(), compilers.result(), cpp.result()
        self.openmp, self.nvcc, self.opencl = openmp.result(), nvcc.result(), opencl.result()
        self.running = {name: found.result() for name, found in running.items()}

    def report(self) -> dict[str, list[str]]:
        """Section title -> lines."""
        return {
            "CPU": cpu_lines(self.cpu),
            "C++": _different(*self.compilers, *self.cpp[1:], self.openmp),
            "CUDA": cuda_lines(self.nvcc, self.driver),
            "OpenCL": [str(self.opencl), *self.opencl.details],
        }

    def backends(self) -> list[Capability]:
        """Every backend, in the default order."""
        runs = self.running | ({} if self.driver else {"cuda": self.driver})
        return [
            Capability("cuda", missing(self.nvcc, *self.cpp), runs["cuda"], "python setup.py build_cuda"),
            Capability("mlx", (), runs["mlx"], ""),
            Capability("opencl", missing(self.opencl), runs["opencl"], "python setup.py build_opencl"),
            Capability("webgpu", (), runs["webgpu"], ""),
            Capability("cpp", missing(*self.cpp), runs["cpp"], "python setup.py build_ext --inplace"),
            Capability("python", (), runs["python"], ""),
        ]


def _different(*findings: Finding) -> list[str]:
    """A line for each, one where several say the same: without a compiler there is no OpenMP either."""
    return list(dict.fromkeys(map(str, findings)))


def missing(*findings: Finding) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if not finding)


def cpu_lines(cpu: probes.Cpu) -> list[str]:
    lines = [
        cpu.model,
        f"by cpuid:      {features(cpu.by_cpuid, 'not asked: it takes a C++ compiler')}",
        f"by py-cpuinfo: {features(cpu.by_cpuinfo, 'not asked: pip install py-cpuinfo')}",
    ]
    if cpu.disagreement:
        lines.append(f"they disagree on {', '.join(cpu.disagreement)}: the backend goes by cpuid")
    return lines


def features(names: tuple[str, ...] | None, without: str) -> str:
    return without if names is None else ", ".join(names) or "none of those that airllm uses"


def cuda_lines(nvcc: Finding, driver: Finding) -> list[str]:
    lines = [str(nvcc)]
    if nvcc:
        lines.append(f"compiles for: {', '.join(nvcc.details)}")
    return [*lines, str(driver), *driver.details]


def print_table(capabilities: list[Capability]) -> None:
    rows = [("Backend", "Can be built", "Runs now", "Device, or what to do")]
    rows += [capability.row() for capability in capabilities]
    for name, built, runs, remark in rows:
        first, *more = remark.splitlines() or [""]
        print(f"{name:<9} {built:<13} {runs:<9} {first}")
        print("".join(f"{'':<34}{line.strip()}\n" for line in more), end="")
