"""Build the compiled backends and run the project's commands. The metadata is in pyproject.toml.

python setup.py build_ext --inplace | build_cuda | build_opencl | test_capabilities | configure_backend
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  pip runs this file before it checks requires-python
    sys.exit(f"airllm needs Python 3.10 or newer, this is {sys.version.split()[0]} ({sys.executable})")

from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pip does not add it

from cpp_ext.commands import command_line

status = command_line.run_alone(sys.argv[1:])
if status is None:
    command_line.run_with_setuptools(sys.argv[1:])
else:
    sys.exit(status)
