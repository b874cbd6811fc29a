"""What the environment asks of the suite: AIRLLM_TEST_REQUIRE and AIRLLM_TEST_ALL."""

import os
from typing import Any

import pytest

# What tests look for besides backends.
TOOLS = {
    *(
        "oclgrind",
        "neon",
        "qemu-x86_64",
        "clang",
        "objdump",
        "real-data",
        "nvcc",
        "nvrtc",
        "hipcc",
        "mpi",
        "cmake",
    ),
    *("chromium", "mingw", "nginx", "pyright", "sphinx"),
}
REQUIRED = [name for name in os.environ.get("AIRLLM_TEST_REQUIRE", "").split(",") if name]
ALL = bool(os.environ.get("AIRLLM_TEST_ALL"))


def needs(what: str, found: Any, why: str) -> None:
    """Skips, with the reason, unless AIRLLM_TEST_REQUIRE says that this machine must have it."""
    if found:
        return
    assert what not in REQUIRED, f"AIRLLM_TEST_REQUIRE names {what}: {why}"
    pytest.skip(why)
