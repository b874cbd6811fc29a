"""The command `airllm`: text from a model, a conversation, what a model and this machine are made of.

Results go to stdout, everything else to stderr. Exit status 1 for what failed, with one line that says why; 2
for a command line that cannot be understood; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm import command_line

if TYPE_CHECKING:
    from airllm.layer_engine import LayerWiseInferenceEngine

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_ENGINE = ("backend", "compute", "context", "cache_dtype", "max_memory")


class Refused(Exception):
    """What the user asked for cannot be; the message is all that is shown."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    options = _parsed(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a letter is no reason to stop
    try:
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # who read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except _expected() as error:
        print(f"airllm: {_line(error)}", file=sys.stderr)
        return 1


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Options may also stand between MODEL and PROMPT, where argparse gives an optional PROMPT up."""
    parser = command_line.parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        parser.exit(2)
    options, rest = parser.parse_known_args(arguments)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(options, "prompt", rest) is None:
        options.prompt = rest.pop()
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _expected() -> tuple[type[Exception], ...]:
    """What is no fault of this program."""
    from airllm.backends.config import ConfigError
    from airllm.models import ModelFileError

    # what a broken configuration keeps from being imported has not raised anything either
    budget = sys.modules.get("airllm.models.budget")
    errors = (budget.MemoryBudgetError,) if budget else ()
    return Refused, ModelFileError, *errors, ConfigError, OSError, ImportError


def _line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        return f"this needs the package {name}, which is not installed: python -m pip install {name}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


# ------------------------------------------------------------------------------------------------ commands


def generate(options: argparse.Namespace) -> int:
    """The answer to a prompt, or the text that goes on from it."""
    prompt = options.prompt
    if prompt is None or prompt == "-":
        prompt = sys.stdin.read()
    with opened(options) as engine:
        with asked():
            pieces = _pieces(engine, prompt, options)
        interrupted = show(pieces)
        print(flush=True)
        tell(engine, options)
    return 130 if interrupted else 0


def _pieces(engine: LayerWiseInferenceEngine, prompt: str, options: argparse.Namespace) -> Iterator[str]:
    """A model made for conversations, asked without its template, most often ends before it has begun."""
    wanted = {"stop": options.stop, **_chosen(options, _SAMPLING)}
    if options.raw or engine.chat_template is None:
        return engine.stream(prompt, options.max_new_tokens, **wanted)
    return engine.stream_chat([{"role": "user", "content": prompt}], options.max_new_tokens, **wanted)


def chat(options: argparse.Namespace) -> int:
    """A conversation, until the end of input."""
    from airllm.conversation import converse

    with opened(options) as engine:
        converse(
            engine,
            options.system,
            lambda messages: engine.stream_chat(
                messages, options.max_new_tokens, stop=options.stop, **_chosen(options, _SAMPLING)
            ),
            lambda: tell(engine, options),
        )
    return 0


def info(options: argparse.Namespace) -> int:
    """What runs on this machine, or what a model is made of."""
    if options.model is None:
        from airllm.tensor_ops import print_backend_info

        print_backend_info()
        return 0
    from airllm.model_info import lines

    for line in lines(_path(options.model)):
        print(line)
    return 0


def profile(options: argparse.Namespace) -> int:
    """Where the time goes."""
    from airllm.models.profile import lines, profile

    with opened(options) as engine:
        with asked():
            found = profile(engine, options.rows, options.passes, options.after)
        print(
            f"{engine.path.name} on {engine.backend.name()} ({engine.backend.device()}): ms in a pass of "
            f"{found.rows} token(s) after {found.context}"
        )
        for line in lines(found):
            print(line)
    return 0


def tune_backends(options: argparse.Namespace) -> int:
    """Where each backend starts to win, measured; `auto` uses it from the next start on."""
    from airllm.backends import tuning
    from airllm.output import refuse_unwritable

    path = tuning.place()
    if path is None:
        raise Refused("AIRLLM_TUNING=off: there is no file to write")
    refuse_unwritable(path)
    with tuning.ignored():  # a file that cannot be read is what this command is to replace
        from airllm import backends, benchmark, engine_backend, load, tune
        from airllm.progress import progress

        names = backends.get_available_backends()
    with asked():
        ops = benchmark.chosen("op", options.ops, tune.tunable())
    if says := load.busy_now():
        print(f"airllm: {says}", file=sys.stderr)
    with progress("Measuring", unit_bytes=False) as advance:
        found = tune.tune(ops, names, tune.QUICK if options.quick else tune.FULL, path, advance)
    choice = tune.chosen_by(found)
    print("\n".join([*tune.lines(choice), f"Written to {path}"]))
    try:
        print(f"Plots: {tune.draw(choice, path)}")
    except ModuleNotFoundError as error:
        print(f"airllm: no plots: {_line(error)}", file=sys.stderr)
    engine_backend.forget()
    return 0


def quantize(options: argparse.Namespace) -> int:
    """A model in another format."""
    from airllm.model_info import size
    from airllm.models.quantize import quantize
    from airllm.progress import progress

    source, target = _path(options.model), Path(options.out)
    with asked(), progress(f"Writing {target.name}") as advance:
        done = quantize(source, target, options.format, advance)
    print(f"{done.path}: {size(done.nbytes)}, from weights of {size(done.before)}")
    if done.twice:
        print(
            f"airllm: weights in {', '.join(done.twice)} were rounded twice: better begin with f16",
            file=sys.stderr,
        )
    return 0


def cpp_flags(options: argparse.Namespace) -> int:
    """What a C++ program is compiled and linked with."""
    from airllm.cpp_program import get_cpp_flags, get_include

    if options.include:
        print(get_include())
        return 0
    both = options.compile == options.link
    flags = get_cpp_flags(compile=both or options.compile, link=both or options.link, openmp=options.openmp)
    print(shlex.join(flags))
    return 0


_COMMANDS = {
    "generate": generate,
    "chat": chat,
    "info": info,
    "profile": profile,
    "tune": tune_backends,
    "quantize": quantize,
    "cpp-flags": cpp_flags,
}


# ------------------------------------------------------------------------------------------------ parts


@contextlib.contextmanager
def opened(options: argparse.Namespace) -> Iterator[LayerWiseInferenceEngine]:
    """The engine that the options describe."""
    from airllm.layer_engine import LayerWiseInferenceEngine

    path = _path(options.model)
    with asked():
        engine = LayerWiseInferenceEngine(path, **_chosen(options, _ENGINE))
    with engine:
        yield engine


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """A ValueError in here is about what the user has asked for."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error


def _path(model: str) -> Any:
    from airllm.models.hub import located
    from airllm.progress import progress

    with progress(f"Fetching {model}") as advance:
        return located(model, on_progress=advance)


def _chosen(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Those that were given."""
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def show(pieces: Iterator[str]) -> bool:
    """Print text as it comes; whether Ctrl-C has broken it off."""
    with contextlib.closing(pieces):  # type: ignore[type-var]
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            return True
    return False


def tell(engine: LayerWiseInferenceEngine, options: argparse.Namespace) -> None:
    """How fast it was and where, on stderr."""
    done = engine.statistics
    if options.quiet or done is None:
        return
    computed = done.prompt_tokens - done.cached_tokens
    where = engine.backend.device()
    print(
        f"[{done.new_tokens} tokens, {done.tokens_per_second:.1f} tokens/s; first after "
        f"{done.seconds_to_first_token:.2f} s ({computed} tokens of prompt computed); "
        f"ended by: {done.reason}; {engine.backend.name()}: {where}]",
        file=sys.stderr,
    )
