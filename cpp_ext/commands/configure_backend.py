"""configure_backend: show and change backend.json. Needs only the standard library."""

import os
import sys
from pathlib import Path

from airllm.backends import config

from . import CommandError, UsageError

HELP = "show or change which backend airllm uses (backend.json)"


def add_options(parser) -> None:
    parser.add_argument("--show", action="store_true", help="print the configuration")
    parser.add_argument("--backend", metavar="NAME", help="prefer this backend, or auto")
    parser.add_argument("--force", action="store_true", help="with --backend: never use another one")
    parser.add_argument("--priority", metavar="LIST", help="order to try in automatic mode")
    parser.add_argument("--reset", action="store_true", help="go back to the defaults")


def run(options) -> None:
    try:
        changed = changes(options)
        path = target()
        if options.reset:
            config.reset(path)
        elif changed:
            config.write(path, **changed)
        show(path)
    except config.ConfigError as error:
        hint = "" if options.reset else "\n(python setup.py configure_backend --reset writes the defaults)"
        raise CommandError(f"{error}{hint}") from None


def changes(options) -> dict:
    """The keys that the options change; UsageError for options that exclude each other."""
    if options.reset and (options.backend or options.force or options.priority is not None):
        raise UsageError("--reset stands alone: it undoes what the other options set")
    if options.force and (not options.backend or config.is_auto(options.backend)):
        example = f"--backend={config.IN_ORDER[0]} --force"
        raise UsageError(f"--force needs the name of a backend, such as {example}")
    if not (options.show or options.reset or options.backend is not None or options.priority is not None):
        raise UsageError("nothing to do, expected --show, --backend=NAME, --priority=LIST or --reset")
    return {**backend_change(options), **priority_change(options)}


def backend_change(options) -> dict:
    if options.backend is None:
        return {}
    name = check_option(config.preference, "--backend", options.backend)
    return {"preferred_backend": name, "force_backend": name if options.force else None}


def priority_change(options) -> dict:
    if options.priority is None:
        return {}
    return {"backend_priority": list(check_option(config.order, "--priority", options.priority))}


def check_option(check, option: str, value: str):
    """`check(value)`, with errors that name the option."""
    try:
        return check(value)
    except config.ConfigError as error:
        raise UsageError(f"{option}={value}: {error}") from None


def target() -> Path:
    """The file to show or change: the one that AIRLLM_CONFIG names, else the checkout's."""
    named = os.environ.get("AIRLLM_CONFIG")
    path = Path(named).expanduser() if named else config.CHECKOUT / "backend.json"
    return path.absolute()


def show(path: Path) -> None:
    """Print the settings of a file in the form that BACKEND_CONFIG.md shows; remarks go to stderr."""
    settings = config.read(path) if path.exists() else config.BY_DEFAULT
    print("Current Backend Configuration:")
    print(f"  Preferred backend: {settings.preferred_backend}")
    print(f"  Force backend: {settings.force_backend}")
    print(f"  Priority order: {', '.join(settings.backend_priority)}")
    print(f"\nConfiguration file: {path}")
    if settings.order != settings.backend_priority:
        print(f"(this order, as shipped, stands for all: {', '.join(settings.order)})", file=sys.stderr)
    if not path.exists():
        print("(the file does not exist: these are the defaults)", file=sys.stderr)
    if os.environ.get("AIRLLM_BACKEND"):
        print(f"(AIRLLM_BACKEND={os.environ['AIRLLM_BACKEND']} is set and counts more)", file=sys.stderr)
