"""What builds of modules for GPUs share: compiling kernels and bindings at the same time, and linking."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import CommandError, cpp_build, probes, stamps


@dataclass(frozen=True)
class GpuModule:
    """A module `name` whose object files are kept in `objects`. `recipe` has what the output of a compiler's
    call depends on besides `sources`; `run` makes the output of a call, by default as it is.
    """

    name: str
    objects: Path
    sources: list[Path]
    recipe: Callable[[list[str]], list[str]]
    run: Callable[[list[str], Path], None] = cpp_build.finish

    def compile(self, calls: Sequence[list[str]], force: bool) -> list[Path]:
        """The object files of these calls, made at once; up-to-date ones are kept, unless `force`."""
        self.objects.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self._compile(call, force), calls))

    def _compile(self, call: list[str], force: bool) -> Path:
        """One object file. Its name has a hash of the recipe: other options, other object."""
        target = self.objects / f"{Path(call[-1]).stem}-{stamps.digest(self.recipe(call))[:12]}.o"
        if force or not cpp_build.is_newer(target, self.sources):
            self.run(call, target)
        return target

    def link(self, folder: Path, objects: list[Path], libraries: Sequence[str]) -> Path:
        """Link the module into `folder` from these objects and libraries, unless it is up to date."""
        target = folder / (self.name + probes.EXT_SUFFIX)
        call = [*probes.cxx_command(), *cpp_build.SHARED, *map(str, objects), *libraries]
        call += cpp_build.user_flags("LDFLAGS")
        made_of = stamps.digest(self.recipe(call), objects)
        if stamps.is_current(target, made_of):
            print(f"{self.name}: {target} is up to date")
            return target
        folder.mkdir(parents=True, exist_ok=True)
        cpp_build.finish(call, target)
        stamps.keep(target, made_of)
        return target


def require(name: str, findings: Sequence[probes.Finding]) -> None:
    """CommandError that lists what is missing for a module."""
    missing = [str(finding) for finding in findings if not finding]
    if missing:
        raise CommandError("\n  ".join([f"{name} cannot be built here", *missing]))


def sources(launchers: str, *names: str) -> list[Path]:
    """Every file of the C++ code that modules of these names are made of, with the folder of their launchers;
    any may include any header.
    """
    headers = [path for path in cpp_build.files_below("bindings", "cpu", "ops") if path.suffix == ".h"]
    modules = [probes.CPP_EXT / f"{name}.cpp" for name in names]
    return [*cpp_build.files_below(launchers, "gpu_kernels"), *headers, *modules, Path(__file__)]
