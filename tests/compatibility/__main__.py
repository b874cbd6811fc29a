"""Runs the smoke test with each Python, and with the oldest and the newest version of each dependency.

    python -m tests.compatibility [--python 3.12 ...] [--versions oldest] [--backends cpp]

For each of them a wheel is built, with the oldest or newest packages that a build needs, and installed into
an empty environment. Without the backend cpp nothing is compiled, which is fast. Pythons that are not here
are named. The exit status is 1 if anything failed.
"""

import argparse
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.compatibility import environments, pythons
from tests.compatibility.environments import Failed
from tests.smoke import EXTRAS

SMOKE = pythons.CHECKOUT / "tests" / "smoke.py"
# Backends that an extra of the same name installs.
BACKENDS = ("opencl", "webgpu", "mlx")
WHY_NOT = "import sys; from airllm import backends; print(backends.open_backend(sys.argv[1]).why_not)"
SHOWN = r"^((?:numpy|ml-dtypes|tokenizers|huggingface-hub|starlette|pybind11|setuptools)==.*)"


def unpack_sdist(folder: Path) -> Path:
    """The sources from which all wheels are built."""
    environments.uv("build", "--sdist", "--out-dir", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def build_wheel(source: Path, python: Path, lines: str, folder: Path, with_cpp: bool) -> Path:
    """airllm's wheel, built with the packages that these lines name. A missing compiler is an error if it is
    `with_cpp`; otherwise nothing is compiled.
    """
    own = environments.create(folder / "build", python, lines)
    how = ("build", "--wheel", "--no-build-isolation", "--python", own, "--out-dir", folder)
    environments.uv(*how, source, **({"AIRLLM_WITH_CPP": "1"} if with_cpp else {"CXX": "no-compiler"}))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(source: Path, python: Path, versions: str, backends: list[str], folder: Path) -> Iterator[str]:
    """Build, install and check; say what was checked. Raises Failed."""
    build = environments.build_requirements(python, versions)
    wheel = build_wheel(source, python, build, folder, with_cpp="cpp" in backends)
    extras = [*EXTRAS, *(name for name in backends if name in BACKENDS)]
    lines = environments.requirements(python, versions, extras)
    yield ", ".join(re.findall(SHOWN, build + lines, re.M))
    own = environments.create(folder / "venv", python, lines)
    environments.install(own, wheel)
    for backend in backends:
        why_not = environments.run([own, "-c", WHY_NOT, backend]).strip()
        if why_not and backend in BACKENDS:
            yield f"{backend} does not run here: {why_not}"
        else:
            more = ["--extras", *EXTRAS] if backend == backends[0] else []
            yield environments.run([own, SMOKE, backend, *more]).splitlines()[-1]


def try_out(source: Path, python: Path, versions: str, backends: list[str]) -> bool:
    """Print what `check` says, and whether nothing failed."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="airllm-compatibility-") as folder:
        try:
            for line in check(source, python, versions, backends, Path(folder)):
                print(f"    {line}", flush=True)
        except Failed as error:
            print(f"    FAILED: {error}", flush=True)
            return False
    print(f"    passed in {time.monotonic() - start:.0f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known, both, usual = pythons.supported(), [*environments.RESOLUTIONS], ["cpp", *BACKENDS]
    parser.add_argument("--python", nargs="+", choices=known, default=known)
    parser.add_argument("--versions", nargs="+", choices=both, default=both)
    parser.add_argument("--backends", nargs="+", choices=["python", *usual], default=usual)
    options = parser.parse_args()
    found = {version: pythons.find(version) for version in options.python}
    results = {}
    with tempfile.TemporaryDirectory(prefix="airllm-sdist-") as folder:
        source = unpack_sdist(Path(folder))
        for version, python in found.items():
            for versions in options.versions if python else ():
                name = f"Python {version} with the {versions} packages"
                print(f"{name}: {python}", flush=True)
                results[name] = try_out(source, python, versions, options.backends)
    for version in (version for version, python in found.items() if not python):
        print(f"NOT CHECKED: Python {version} is not on this machine")
    failed = [name for name, passed in results.items() if not passed]
    print(*(f"FAILED: {name}" for name in failed), sep="\n", end="\n" if failed else "")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
