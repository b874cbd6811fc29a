"""build_cuda: compile tensor_ops_cuda into cpp_ext/ and report whether it can run here."""

from . import cuda_build, probes

HELP = "build the CUDA backend into cpp_ext/ (needs nvcc, no GPU)"


def add_options(parser) -> None:
    known = ",".join(cuda_build.DEFAULT_ARCHS)
    parser.add_argument(
        "--arch",
        metavar="LIST",
        help=f"such as 90 or 80,90; default: what nvcc knows of {known}",
    )
    parser.add_argument("--force", action="store_true", help="build even what is up to date")


def run(options) -> None:
    path = cuda_build.build(probes.CPP_EXT, cuda_build.split_architectures(options.arch or ""), options.force)
    answer = probes.module(cuda_build.NAME)
    print(f"built {path}")
    print(f"it runs here: {answer.version}" if answer else f"it cannot run here: {answer.why_not}")
