"""build_ext: compiles tensor_ops_cpp, and tensor_ops_cuda too if AIRLLM_WITH_CUDA=1."""

import os
import sys
from pathlib import Path

from . import CommandError, cpp_build, cuda_build, probes

HELP = "build the C++ backend (--inplace: into cpp_ext/)"


def add_options(parser) -> None:
    parser.add_argument(
        "--inplace", action="store_true", help="put the module into cpp_ext/ for use in the checkout"
    )
    parser.add_argument(
        "--force", action="store_true", help="build even if the module is newer than its sources"
    )


def run(options) -> None:
    cpp_build.build(probes.CPP_EXT if options.inplace else probes.CHECKOUT / "build" / "lib", options.force)


def from_setuptools(base: type) -> type:
    """The setuptools command; `base` is setuptools' own build_ext, whose options and bookkeeping it keeps."""

    class BuildExt(base):
        description = HELP

        def run(self):
            folder = probes.CPP_EXT if self.inplace else Path(self.build_lib)
            build_cpp(folder, self.force, wheel=self._is_for_a_wheel())
            if os.environ.get("AIRLLM_WITH_CUDA") == "1":
                build_cuda(folder, self.force)

        def _is_for_a_wheel(self) -> bool:
            return any(name in ("bdist_wheel", "editable_wheel") for name in self.distribution.commands)

    BuildExt.__name__ = "build_ext"
    return BuildExt


def build_cpp(folder: Path, force: bool, wheel: bool) -> None:
    """Builds tensor_ops_cpp. A wheel made where that is impossible gets a module that says why instead."""
    try:
        cpp_build.build(folder, force)
    except CommandError as error:
        if not wheel or os.environ.get("AIRLLM_WITH_CPP") == "1":
            raise SystemExit(f"build_ext: {error}") from None
        print(f"warning: build_ext: {error}\nairllm is installed without its C++ backend.", file=sys.stderr)
        leave_note(folder, str(error))


def build_cuda(folder: Path, force: bool) -> None:
    """Builds tensor_ops_cuda, which was asked for: failing is an error for a wheel too."""
    try:
        cuda_build.build(folder, force=force)
    except CommandError as error:
        raise SystemExit(f"build_ext: AIRLLM_WITH_CUDA=1: {error}") from None


NOTE = '''"""Stands where the C++ backend would be: it could not be built when airllm was installed."""

raise ImportError({reason!r})
'''


def leave_note(folder: Path, reason: str) -> None:
    """Writes a tensor_ops_cpp.py whose import tells why there is no compiled one."""
    remedy = "Install what is missing, then repeat the pip install"
    if folder == probes.CPP_EXT:
        remedy += " (or: python setup.py build_ext --inplace)"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{cpp_build.NAME}.py").write_text(NOTE.format(reason=f"{reason}\n{remedy}"), encoding="utf-8")
