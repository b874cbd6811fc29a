"""The `airllm` command: generate text, chat, and describe, profile, tune and quantize.

Results go to stdout, everything else to stderr. The exit status is 1 after a failure, with a one-line
reason; 2 for an invalid command line; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import stat
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.cli import argument_parser
from airllm.cli.argument_parser import in_options
from airllm.cli.terminal import Refused

if TYPE_CHECKING:
    from airllm.engine.engine import LayerWiseInferenceEngine

_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
)  # fmt: skip
_ENGINE = (
    "backend", "threads", "compute", "context", "cache_dtype", "max_memory", "speculative",
    "device_memory", "gpu_layers", "offload", "fallback_backends",
)  # fmt: skip
# Default sampling if neither the command line nor the model's files specify it.
_DRAWN: dict[str, dict[str, Any]] = {"generate": {}, "chat": {"temperature": 0.7, "top_p": 0.95}}


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    options = argument_parser.parse_arguments(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # the parent process closed it
        print("airllm: stdout is closed, expected a terminal, a file or a pipe", file=sys.stderr)
        return 1
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # do not fail on characters that the terminal cannot show
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        return 141
    except _expected_errors() as error:
        print(f"airllm: {_error_line(error, options)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # a full disk
            _drop_output()
        return 1


def _drop_output() -> None:
    """What stdout could not take would be written again when the interpreter ends, and fail with a status of
    its own.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning as one line, without its location in the code."""
    text = " ".join(str(message).split()).removeprefix("airllm: ")
    print(f"airllm: {text}", file=sys.stderr)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors that are not bugs of this program; each is reported as one line."""
    from airllm.backends.config import ConfigError
    from airllm.files import ModelFileError

    # a module that a broken configuration kept from being imported cannot have raised its error
    budget = sys.modules.get("airllm.memory.budget")
    errors: tuple[type[Exception], ...] = (budget.MemoryBudgetError,) if budget else ()
    faults = sys.modules.get("airllm.backends.device.faults")
    errors += (faults.DeviceFault,) if faults else ()
    return Refused, ModelFileError, *errors, ConfigError, OSError, ImportError


def _error_line(error: Exception, options: argparse.Namespace) -> str:
    from airllm import extras
    from airllm.files import ModelFileError

    if isinstance(error, ModuleNotFoundError) and error.name and not isinstance(error, extras.MissingExtra):
        return extras.message(error.name.partition(".")[0])
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    asked_for = isinstance(error, ValueError) and not isinstance(error, ModelFileError)
    return in_options(str(error), options) if asked_for else str(error)


# ------------------------------------------------------------------------------------------------ commands


def generate(options: argparse.Namespace) -> int:
    """Print the answer to a prompt or, with --raw, its continuation."""
    from airllm.cli.answer_printer import facts
    from airllm.cli.stdin_prompt import with_stdin
    from airllm.cli.terminal import show
    from airllm.progress import Waiting

    prompt = with_stdin(options.prompt)
    with open_engine(options) as engine:
        wait = Waiting("Reading the prompt", options.quiet)
        sampling = _sampling(engine, options)
        with report_as_user_error(options):
            form = _form(options)
            pieces = _pieces(engine, prompt, options, {**sampling, **form, "on_prompt": wait.advance})
        if options.json:
            with wait:
                text, interrupted = _join_pieces(pieces)
            found = {"model": options.model, "text": text, **facts(engine), "sampling": sampling}
            print(json.dumps(found), flush=True)
        else:
            interrupted = show(pieces, wait)
            print(flush=True)
            tell(engine, options)
    return 130 if interrupted else 0


def _pieces(
    engine: LayerWiseInferenceEngine, prompt: str, options: argparse.Namespace, wanted: dict[str, Any]
) -> Iterator[str]:
    """Stream the text. A chat model gets its template: without it, most stop at the first token."""
    wanted = {"stop": options.stop, **wanted}
    if options.raw or engine.chat_template is None:
        return engine.stream(prompt, options.max_new_tokens, **wanted)
    return engine.stream_chat([{"role": "user", "content": prompt}], options.max_new_tokens, **wanted)


def _form(options: argparse.Namespace) -> dict[str, Any]:
    """The options that restrict the text. A schema is JSON text, or the name of a file with it."""
    form = _chosen_options(options, ("json_schema", "regex", "choices"))
    schema = form.get("json_schema")
    if schema is not None and not schema.lstrip().startswith("{"):
        form["json_schema"] = Path(schema).read_text(encoding="utf-8")
    return form


def _sampling(engine: LayerWiseInferenceEngine, options: argparse.Namespace) -> dict[str, Any]:
    """Sampling options: those given, else those the model's files recommend, else the command's defaults."""
    recommended = engine.recommended_sampling
    drawn = {} if "temperature" in recommended else _DRAWN[options.command]
    return {**drawn, **recommended, **_chosen_options(options, _SAMPLING)}


def _join_pieces(pieces: Iterator[str]) -> tuple[str, bool]:
    """The whole text, and whether Ctrl-C interrupted it."""
    text = ""
    with contextlib.closing(pieces):  # type: ignore[type-var]
        try:
            for piece in pieces:
                text += piece
        except KeyboardInterrupt:
            return text, True
    return text, False


def chat(options: argparse.Namespace) -> int:
    """Chat until the end of input."""
    from airllm.cli.chat import converse

    with open_engine(options) as engine:
        settings = {"max_new_tokens": options.max_new_tokens, "stop": options.stop}
        settings |= _sampling(engine, options)
        with report_as_user_error(options):
            failed = converse(
                engine, options.system, settings, options.quiet, lambda text: in_options(text, options)
            )
    return 1 if failed else 0


def embed(options: argparse.Namespace) -> int:
    """Print the vector of each text."""
    texts = iter(options.texts or (line.rstrip("\r\n") for line in sys.stdin))
    together = _EMBEDDED if options.texts or _is_file(sys.stdin) else 1  # a program may wait for each line
    given = {name: getattr(options, name) for name in ("prompt_name", "prompt", "truncate")}
    with open_engine(options) as engine, report_as_user_error(options):
        while some := list(itertools.islice(texts, together)):
            for vector in engine.embed(some, **given):
                print(json.dumps([round(float(value), 8) for value in vector]), flush=True)
    return 0


_EMBEDDED = 64  # texts that go through the model together


def _is_file(stream: Any) -> bool:
    """Whether all of it is there already."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError, ValueError):
        return False


def serve(options: argparse.Namespace) -> int:
    """Serve a model to many clients, with OpenAI's interface."""
    from airllm.cli import server

    with server.ending_at_sigterm():
        with report_as_user_error(options, origins="cors_origin", keys="api_key", names="model_name"):
            settings = server.options_of(options)
        with (
            contextlib.closing(server.listen(settings)) as listening,
            open_engine(options) as engine,
            report_as_user_error(options, max_waiting="queue", cache_bytes="cache_memory"),
        ):
            return server.serve(engine, settings, listening, options)


def answer_batch(options: argparse.Namespace) -> int:
    """Answer a file of requests."""
    from airllm.cli import batch

    with batch.open_files(options) as (requests, results):
        if len(results.done) < len(requests.requests):
            with open_engine(options) as engine, report_as_user_error(options):
                batch.run(engine, requests, results, options)
        return batch.tell_state(results, options.quiet)


def info(options: argparse.Namespace) -> int:
    """Print the backends of this machine, or a description of a model."""
    if options.model is None:
        return _info_of_this_machine(options.json)
    from airllm.engine.info import facts, lines

    path = _path(options.model)
    if options.json:
        print(json.dumps(facts(path)))
        return 0
    for line in lines(path):
        print(line)
    return 0


def _info_of_this_machine(as_json: bool) -> int:
    from airllm.architectures import types_of_folders
    from airllm.tensor_ops import get_backend_info, print_backend_info

    if as_json:
        print(json.dumps({**get_backend_info(), "model_types": types_of_folders()}, default=str))
        return 0
    print_backend_info()
    print(f"Models:         {', '.join(types_of_folders())}")
    return 0


def profile(options: argparse.Namespace) -> int:
    """Print the time of each op and each layer."""
    from airllm.bench.measure import bandwidth
    from airllm.engine.profile import lines, profile

    with open_engine(options) as engine:
        with report_as_user_error(options, context="after"):
            found = profile(engine, options.rows, options.passes, options.after)
        memory = bandwidth()
        print(
            f"{engine.path.name} on {engine.backend.name()} ({engine.backend.device()}): ms in a pass of "
            f"{found.rows} token(s) after {found.context}"
        )
        for line in lines(found, memory.read):
            print(line)
        print(f"memory: {memory.read:.1f} GB/s read, by {memory.how}. What is in a cache is read faster.")
    return 0


def tune_backends(options: argparse.Namespace) -> int:
    """Time the ops on each backend. `auto` uses the result from the next start on."""
    from airllm.backends import tuning_file
    from airllm.writable import refuse_unwritable

    path = tuning_file.tuning_file()
    if path is None:
        raise Refused(f"{tuning_file.why_no_file()}: there is no file to write")
    refuse_unwritable(path)
    with tuning_file.ignore_tuning():  # this command also replaces a file that cannot be read
        from airllm import backends
        from airllm.bench import machine_load, op_benchmark, tune
        from airllm.engine.devices import backend_choice
        from airllm.progress import progress

        names = backends.get_available_backends()
    with report_as_user_error(options):
        ops = op_benchmark.choose_names("op", options.ops, tune.tunable())
    if says := machine_load.busy_now():
        print(f"airllm: {says}", file=sys.stderr)
    with progress("Measuring", unit_bytes=False) as advance:
        found = tune.tune(ops, names, tune.QUICK if options.quick else tune.FULL, path, advance)
    choice = tune.choose_by(found)
    print("\n".join([*tune.lines(choice), f"Written to {path}"]))
    try:
        print(f"Plots: {tune.draw(choice, path)}")
    except ModuleNotFoundError as error:
        print(f"airllm: no plots: {_error_line(error, options)}", file=sys.stderr)
    backend_choice.forget()
    return 0


def quantize(options: argparse.Namespace) -> int:
    """Convert a model to another format."""
    from airllm.convert.quantize import quantize
    from airllm.progress import progress
    from airllm.readable import size

    source, target = _path(options.model), Path(options.out)
    with report_as_user_error(options), progress(f"Writing {target.name}") as advance:
        done = quantize(source, target, options.format, advance)
    print(f"{done.path}: {size(done.nbytes)}, from weights of {size(done.before)}")
    if done.twice:
        print(
            f"airllm: weights in {', '.join(done.twice)} were rounded twice: better begin with f16",
            file=sys.stderr,
        )
    return 0


def cpp_flags(options: argparse.Namespace) -> int:
    """Print the compiler and linker flags for C++ programs."""
    from airllm.cpp_program import get_cmake_dir, get_cpp_flags, get_include

    if options.include or options.cmake_dir:
        print(get_include() if options.include else get_cmake_dir())
        return 0
    both = options.compile == options.link
    flags = get_cpp_flags(compile=both or options.compile, link=both or options.link, openmp=options.openmp)
    print(shlex.join(flags))
    return 0


def show_models(options: argparse.Namespace) -> int:
    """Print the models on this machine."""
    from airllm.cli.models import show_models

    return show_models(options)


_COMMANDS = {
    "generate": generate,
    "chat": chat,
    "embed": embed,
    "serve": serve,
    "batch": answer_batch,
    "info": info,
    "models": show_models,
    "profile": profile,
    "tune": tune_backends,
    "quantize": quantize,
    "cpp-flags": cpp_flags,
}


# ------------------------------------------------------------------------------------------------ parts


@contextlib.contextmanager
def open_engine(options: argparse.Namespace) -> Iterator[LayerWiseInferenceEngine]:
    """Open the engine that the options describe."""
    from airllm.engine.engine import LayerWiseInferenceEngine
    from airllm.progress import Waiting

    path = _path(options.model)
    chosen = _chosen_options(options, _ENGINE)
    if adapters := getattr(options, "adapter", None):
        chosen["adapter"] = [_adapter(each) for each in adapters]
    if draft := getattr(options, "draft_model", None):
        chosen["draft_model"] = _path(draft)
    waiting = Waiting(f"Opening {options.model}", getattr(options, "quiet", False))
    with report_as_user_error(options), waiting:
        engine = LayerWiseInferenceEngine(path, **chosen)
    with engine:
        yield engine


@contextlib.contextmanager
def report_as_user_error(options: argparse.Namespace, **others: str) -> Iterator[None]:
    """Report a ValueError as an error in the user's options. For `others`, see `in_options`."""
    from airllm.files import ModelFileError

    try:
        yield
    except ModelFileError:
        raise
    except ValueError as error:
        raise Refused(in_options(str(error), options, **others)) from error


def _path(model: str) -> Any:
    from airllm.files.hub import locate
    from airllm.progress import progress

    with progress(f"Fetching {model}") as advance:
        return locate(model, on_progress=advance)


def _adapter(text: str) -> tuple[str, float]:
    """The path and the scale of PATH or PATH:SCALE."""
    path, _, scale = text.rpartition(":")
    if path and not Path(text).exists():
        with contextlib.suppress(ValueError):
            return path, float(scale)
    return text, 1.0


def _chosen_options(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The options among `names` that were given."""
    given = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def tell(engine: LayerWiseInferenceEngine, options: argparse.Namespace) -> None:
    """Print the speed to stderr."""
    from airllm.cli.answer_printer import summary_line

    if not options.quiet and engine.statistics:
        print(summary_line(engine), file=sys.stderr)
