"""build_opencl: compiles every kernel for every OpenCL device of this machine, with the logs of failures."""

HELP = "compile every OpenCL kernel for every device here"


def add_options(parser) -> None:
    """There are none."""


def run(options) -> None:
    raise NotImplementedError
