"""What the environment asks of the suite: AIRLLM_TEST_REQUIRE and AIRLLM_TEST_ALL."""

import os

# What tests look for besides backends.
TOOLS = {
    *("oclgrind", "neon", "qemu-x86_64", "clang", "objdump", "real-data", "nvcc", "hipcc", "mpi", "cmake"),
    *("chromium", "mingw", "nginx", "pyright", "sphinx"),
}
REQUIRED = [name for name in os.environ.get("AIRLLM_TEST_REQUIRE", "").split(",") if name]
ALL = bool(os.environ.get("AIRLLM_TEST_ALL"))
