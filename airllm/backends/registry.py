"""The backends of this machine, and the one that runs the ops now.

A backend is a module with `device()` and functions named after ops; `declaration` says where it is.
A backend is available once it has computed an op correctly; otherwise the registry keeps the reason.
"""

import contextlib
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from airllm.backends import (
    config,
    config_schema,
    declaration,
    proof,
    reasons,
    routing,
    tuning_file,
)
from airllm.backends.backend import Backend as Backend
from airllm.backends.config_schema import DEFINITIONS, absent_names
from airllm.backends.declaration import CHECKOUT, all_declarations

if (CHECKOUT / "cpp_ext").is_dir():  # a checkout: backends built in place are there
    sys.path.append(str(CHECKOUT / "cpp_ext"))

NOT_MEASURED = "the first that runs in the order; `airllm tune` measures which one is the fastest"

_lock = threading.RLock()
_opened: dict[str, Backend] = {}
_tables: dict[tuple, routing.Table] = {}

# The NumPy definition of every op. `python` runs these, and so does a backend for ops without a kernel.
definitions: dict[str, Callable] = {}


def declare(op_name: str, definition: Callable) -> None:
    """Register the definition of an op; it replaces an earlier one of that name in opened backends too."""
    definitions[op_name] = definition
    for backend in _opened.values():
        if not backend.why_not:
            backend.kernels[op_name] = _kernel(backend.module, op_name)
    for table in _tables.values():
        table.kernels[op_name] = table.kernel(op_name)


def _kernel(module: ModuleType | None, op_name: str) -> Callable:
    """The backend's function for an op, else the definition."""
    return getattr(module, op_name, None) or definitions[op_name]


@dataclass
class _Choice:
    """The backend in use, why it was chosen, and why those before it in the order were not.

    With a `table`, the backend runs only the calls that were not measured. `named`: it was chosen by name,
    not by the order.
    """

    backend: Backend
    config: config.Config
    passed_over: dict[str, str]
    why: str
    table: routing.Table | None = None
    named: bool = False
    kernels: dict[str, Callable] = field(init=False)

    def __post_init__(self) -> None:
        # saves an attribute lookup in every call
        self.kernels = (self.table or self.backend).kernels


def module_of(name: str) -> ModuleType | None:
    """Import a backend's module; None for NumPy. Raises what the import raises. The backend may not run."""
    own = all_declarations()[name]
    if own.broken:
        raise own.broken
    return None if own.definitions else importlib.import_module(own.module)


def _try_open(name: str) -> Backend:
    if reason := absent_names().get(name):
        return Backend(name, why_not=reason)
    try:
        module = module_of(name)
        if module is None:
            return Backend(name, device=_numpy(), kernels=dict(definitions))
        device = proof.prove_device(module)
    except Exception as error:  # a driver may raise any exception
        if config_schema.is_of_a_setting(name, error):  # a mistake of the user's must not be hidden
            raise config.ConfigError(str(error)) from error
        return Backend(name, why_not=reason_of(name, error), cause=error)
    kernels = {op_name: _kernel(module, op_name) for op_name in definitions}
    return Backend(name, module, device, kernels=kernels)


def _numpy() -> str:
    """NumPy and the BLAS it was built with; the C++ backend uses that too."""
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    name, version = (blas.get(key, "") for key in ("name", "version"))
    return f"NumPy {np.__version__}" + (f", products by {name} {version}" if name else "")


def reason_of(name: str, error: Exception) -> str:
    """One line that says why a backend cannot run here, from the `error` it raised."""
    remedy = all_declarations()[name].how_to_get() if isinstance(error, ModuleNotFoundError) else ""
    return reasons.reason(error) + (f" ({remedy})" if remedy else "")


def remedy_for(name: str) -> str:
    """How to build or install a backend."""
    own = all_declarations().get(name)
    return (own.how_to_get() if own else "") or "see its documentation"


def open_backend(name: str) -> Backend:
    """Open the backend `name` (or an alias) and try it, once. One that fails is returned with its `why_not`.

    Raises ValueError that lists the known names if there is no such backend.
    """
    if found := _opened.get(name):
        return found
    name = config.canonical_name(name)
    with _lock:
        if name not in _opened:
            _opened[name] = _try_open(name)
        return _opened[name]


opened = open_backend  # its former name


def available() -> list[str]:
    """Names of the backends that run here, in the configured order."""
    return [name for name in all_names() if not open_backend(name).why_not]


def kernel(op_name: str, backend_name: str) -> Callable:
    """The function that runs an op on a backend."""
    return require_backend(backend_name).kernels[op_name]


def all_names() -> list[str]:
    """Names of all known backends, those of the configured order first."""
    return list(dict.fromkeys([*process_wide.config.order, *config.known_names()]))


def require_backend(name: str, undo: str = "ask for another backend") -> Backend:
    """The backend of this name; ImportError with the reason and the remedies if it cannot run here."""
    backend = open_backend(name)
    if backend.why_not:
        raise ImportError(
            f"{backend.cause if isinstance(backend.cause, ModuleNotFoundError) else backend.why_not}\n"
            f"The backend {backend.name!r} was asked for by name and cannot run here. Either:\n"
            f"  1. Build the backend: {remedy_for(backend.name)}\n"
            f"  2. {undo}"
        ) from backend.cause
    return backend


def why_passed_over(name: str) -> str:
    """Why the automatic order skips a backend: it cannot run, or runs only if named. "" if it does not."""
    with contextlib.suppress(Exception):  # open_backend() fails too and keeps the reason
        hook = getattr(module_of(name), "only_when_asked", None)
        if reason := hook() if hook else "":
            return reason
    return open_backend(name).why_not


def _choose(settings: config.Config) -> _Choice:
    if name := settings.force_backend:
        backend = require_backend(name, config.how_to_unforce(settings))
        return _Choice(backend, settings, {}, f"{settings.source} forces it", named=True)
    passed_over: dict[str, str] = {}
    if settings.preferred_backend != "auto":
        backend = open_backend(settings.preferred_backend)
        if not backend.why_not:
            return _Choice(backend, settings, passed_over, f"{settings.source} prefers it", named=True)
        passed_over[backend.name] = backend.why_not
    backend = _first_running(settings.order, passed_over)
    if settings.preferred_backend != "auto":
        warnings.warn(
            f"airllm: the preferred backend {settings.preferred_backend!r} cannot run here, "
            f"{backend.name!r} does: {passed_over[config.canonical_name(settings.preferred_backend)]}",
            stacklevel=2,
        )
    return _choose_tuned(backend, settings, passed_over)


def _choose_tuned(backend: Backend, settings: config.Config, passed_over: dict[str, str]) -> _Choice:
    """The automatic choice, by measured times if they were measured on this machine in its present state."""
    found = tuning_file.load()
    if found is None:
        return _Choice(backend, settings, passed_over, NOT_MEASURED)
    if changed := found.machine.changes({backend.name: backend.device}):
        why = f"{found.path} no longer applies here ({'; '.join(changed)}): `airllm tune` measures again"
        warnings.warn(f"airllm: {why}", stacklevel=2)
        return _Choice(backend, settings, passed_over, why)
    table = _table(found, backend, settings)
    return _Choice(backend, settings, passed_over, f"measured {found.measured}: {found.path}", table)


def _table(found: tuning_file.Tuning, backend: Backend, settings: config.Config) -> routing.Table:
    order = tuple(dict.fromkeys([*settings.order, DEFINITIONS]))
    key = (found, backend.name, order)
    if key not in _tables:
        _tables[key] = routing.Table(found, backend, order, open_backend)
    return _tables[key]


def automatic_table(found: tuning_file.Tuning) -> routing.Table:
    """The routing table of the automatic order for these times, even if a backend is forced or preferred."""
    settings = config.load()
    return _table(found, _first_running(settings.order, {}), settings)


def _first_running(order: Iterable[str], passed_over: dict[str, str]) -> Backend:
    """The first backend of `order` not to skip; `passed_over` gets those before it, with the reasons."""
    for name in order:
        if name not in passed_over:
            if not (reason := why_passed_over(name)):
                return open_backend(name)
            passed_over[name] = reason
    return open_backend(DEFINITIONS)


def best() -> Backend:
    """The first backend of the automatic order that runs here."""
    return _first_running(process_wide.config.order, {})


# NumPy until `airllm.tensor_ops` has declared the ops: to show that it runs, a backend must compute one.
process_wide = _Choice(
    open_backend(DEFINITIONS),
    config.Config(DEFINITIONS, (DEFINITIONS,), None, "defaults", None),
    {},
    "no op is declared",
)
_scoped: ContextVar[_Choice | None] = ContextVar("airllm_backend", default=None)
scoped_choice = _scoped.get


def choice() -> _Choice:
    return _scoped.get() or process_wide


def current(name: str | None = None) -> Backend:
    """The backend that runs ops now in this thread, or the named one."""
    return require_backend(name) if name else choice().backend


def kernels(name: str | None = None) -> dict[str, Callable]:
    """Op name -> the function that runs it now in this thread, or on the named backend."""
    return require_backend(name).kernels if name else choice().kernels


def _choose_by_name(name: str) -> _Choice:
    if config.is_auto(name):
        return _choose(config.load())
    return _Choice(require_backend(name), process_wide.config, {}, "asked for by name", named=True)


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[Backend]:
    """Run the ops of a `with` block on this backend, in this thread (or asyncio task) only.

    "auto" follows the configuration. Raises ImportError with the reason and the remedies if the backend
    cannot run here, ValueError if there is no such backend.
    """
    token = _scoped.set(_choose_by_name(name))
    try:
        yield choice().backend
    finally:
        _scoped.reset(token)


def set_backend(name: str) -> None:
    """Run ops on this backend from now on, in every thread. Raises as `use_backend` does."""
    global process_wide
    process_wide = _choose_by_name(name)


def reload_backend() -> str:
    """Read the configuration again, retry the backends that failed, and return the name of the choice."""
    with _lock:
        for name in [name for name, backend in _opened.items() if backend.why_not]:
            del _opened[name]
            if name in all_declarations():
                getattr(sys.modules.get(all_declarations()[name].module), "try_again", lambda: None)()
        _tables.clear()
    importlib.invalidate_caches()
    declaration.forget()
    set_backend("auto")
    return get_backend()


def get_backend() -> str:
    """Name of the backend that runs ops now in this thread."""
    return choice().backend.name
