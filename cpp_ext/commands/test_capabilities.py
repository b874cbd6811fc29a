"""test_capabilities: report what this machine can build and run, and what is missing for the rest."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airllm.backends.declaration import all_declarations

from . import probes
from .probes import Finding
from .recipes import recipes

RECIPES = recipes()
HELP = "show which backends can be built and run here, and why not the others"


def add_options(parser) -> None:
    """This command has no options."""


def run(options) -> None:
    findings = Findings()
    for title, lines in findings.report().items():
        print(f"{title}:")
        print("".join(f"  {line}\n" for line in lines))
    print_table(findings.backends())


@dataclass(frozen=True)
class Capability:
    """A backend: the tools of its build, missing ones, and whether it runs now."""

    name: str
    missing: tuple[Finding, ...]
    runs: Finding
    build: str

    def row(self) -> tuple[str, str, str, str]:
        return self.name, "no" if self.missing else "yes", "yes" if self.runs else "no", self.remark()

    def remark(self) -> str:
        """The device, or why there is none, with the remedy."""
        if self.runs:
            return self.runs.version
        reasons = [str(finding) for finding in self.missing] or [str(self.runs)]
        if self.runs.why_not == probes.NOT_BUILT:
            reasons[-1] = reasons[-1] if self.missing else f"{probes.NOT_BUILT}: {self.build}"
        return "; ".join(reasons)


class Findings:
    """The results of all probes, run once and concurrently, since each waits for processes."""

    def __init__(self):
        with ThreadPoolExecutor() as pool:
            cpu, compilers = pool.submit(probes.cpu), pool.submit(probes.compilers)
            cxx = pool.submit(probes.cpp_prerequisites)
            openmp = pool.submit(probes.openmp, probes.cxx_command())
            tools = {name: pool.submit(recipe.tools) for name, recipe in RECIPES.items()}
            running = {name: pool.submit(runs, name) for name in all_declarations()}
        self.cpu, self.compilers = cpu.result(), compilers.result()
        self.cxx, self.openmp = cxx.result(), openmp.result()
        self.tools = {name: found.result() for name, found in tools.items()}
        self.running = {name: found.result() for name, found in running.items()}

    def report(self) -> dict[str, list[str]]:
        """Section title -> lines."""
        own = [self.tools[name] for name in all_declarations() if name in self.tools]
        return {
            "CPU": cpu_lines(self.cpu),
            "C++": _different(*self.compilers, *self.cxx[1:], self.openmp),
            **{tools.title: list(tools.lines) for tools in own if tools.title},
        }

    def backends(self) -> list[Capability]:
        """Every backend, in the default order."""
        return [
            Capability(name, self._missing(name), runs, _build(name)) for name, runs in self.running.items()
        ]

    def _missing(self, name: str) -> tuple[Finding, ...]:
        return self.tools[name].missing if name in self.tools else ()


def runs(name: str) -> Finding:
    """Whether a backend runs now."""
    found: Finding = getattr(RECIPES.get(name), "driver", lambda: Finding(""))()
    return probes.backend(all_declarations()[name]) if found else found


def _build(name: str) -> str:
    """The command that builds a backend, "" if there is nothing to build."""
    return " ".join(("python setup.py", *RECIPES[name].COMMAND)) if name in RECIPES else ""


def _different(*findings: Finding) -> list[str]:
    """A line for each different finding: without a compiler, OpenMP is missing for the same reason."""
    return list(dict.fromkeys(map(str, findings)))


def cpu_lines(cpu: probes.Cpu) -> list[str]:
    lines = [
        cpu.model,
        f"by cpuid:      {features(cpu.by_cpuid, 'not checked: it needs a C++ compiler')}",
        f"by py-cpuinfo: {features(cpu.by_cpuinfo, 'not checked: pip install py-cpuinfo')}",
    ]
    if cpu.disagreement:
        lines.append(f"they disagree on {', '.join(cpu.disagreement)}: the backend uses cpuid")
    return lines


def features(names: tuple[str, ...] | None, without: str) -> str:
    return without if names is None else ", ".join(names) or "none of those that airllm uses"


def print_table(capabilities: list[Capability]) -> None:
    rows = [("Backend", "Can be built", "Runs now", "Device, or what to do")]
    rows += [capability.row() for capability in capabilities]
    for name, built, runs, remark in rows:
        first, *more = remark.splitlines() or [""]
        print(f"{name:<9} {built:<13} {runs:<9} {first}")
        print("".join(f"{'':<34}{line.strip()}\n" for line in more), end="")
