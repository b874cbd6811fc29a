"""build_hip: compile tensor_ops_rocm into cpp_ext/ and report whether it can run here."""

from . import probes, rocm_build

HELP = "build the backend for AMD's GPUs into cpp_ext/ (needs hipcc, no GPU)"


def add_options(parser) -> None:
    parser.add_argument(
        "--arch", metavar="LIST", help="such as gfx90a or gfx90a,gfx1030; default: all that hipcc knows"
    )
    parser.add_argument("--force", action="store_true", help="build even what is up to date")


def run(options) -> None:
    path = rocm_build.build(probes.CPP_EXT, rocm_build.split_architectures(options.arch or ""), options.force)
    answer = probes.module(rocm_build.NAME)
    print(f"built {path}")
    print(f"it runs here: {answer.version}" if answer else f"it cannot run here: {answer.why_not}")
