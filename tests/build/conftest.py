"""What tests of builds and installs share."""

import sys

import checkouts
import pytest

from cpp_ext.commands import build_ext, cpp_build


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    """The source distribution of a checkout in which only the note of an earlier install is new."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = checkouts.copy(folder / "checkout")
    build_ext.leave_note(checkout / "cpp_ext", cpp_build.NAME, "no compiler")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(folder), str(checkout)]
    answer = checkouts.run(command, folder)
    assert answer.returncode == 0, checkouts.output_of(answer)
    return next(folder.glob("airllm_tensor_ops-*.tar.gz"))
