"""Builds the compiled backends and runs the project's own commands. The metadata is in pyproject.toml."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setuptools import Extension, setup
from setuptools.command import build_ext as original

from cpp_ext.commands import build_ext

setup(
    license="Apache-2.0",
    ext_modules=[Extension(name, []) for name in ("tensor_ops_cpp", "tensor_ops_cuda")],
    cmdclass={"build_ext": build_ext.from_setuptools(original.build_ext)},
)
