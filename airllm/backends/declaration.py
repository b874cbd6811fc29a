"""The declaration of a backend: all that code which lists, chooses, builds, times or plots backends needs.

Every backend is declared the same way: an entry point `name = "module:BACKEND"` whose object is a
`Declaration`. An installed distribution has its entry point in the group `airllm.backends`. For a backend of
this tree, its module in the folder `shipped` is the entry point, because a checkout that is not installed has
no metadata, and that of an editable install may be out of date. Only `shipped()` and `all_declarations()`
tell the two apart, and no other module knows a backend by its name. This module and the declarations use the
standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.extras import command

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "airllm.backends"
SHIPPED = "airllm.backends.shipped"
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Absent:
    """A backend name of other systems that is no backend here.

    `title` and `runs_on` are for summaries; `reason` says why there is none, or what replaces it.
    """

    title: str
    runs_on: str
    reason: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """A backend: where its kernels are, and what other code must know before it loads them.

    Functions are given as "module:function", so reading a declaration imports nothing else.
    """

    # The module with the kernels; default: that of the entry point. `definitions`: it has no kernels and runs
    # the ops' definitions.
    module: str = ""
    definitions: bool = False
    # Its title and hardware in summaries, its other names (lower case), and its colour in plots.
    title: str = ""
    runs_on: str = "other"
    aliases: tuple[str, ...] = ()
    colour: str = ""
    # Its rank in the automatic order, lowest first. None: it is tried only if a configuration names it.
    rank: int | None = None
    # Whether the shipped backend.json names it. That order stands for the order of all backends with a rank.
    in_shipped_order: bool = False
    # It computes in host memory: a model's weights need not be copied to a device.
    on_processor: bool = False
    # Distributions whose versions affect its speed, and packages whose arrays are in its memory although
    # they do not report their device through DLPack.
    packages: tuple[str, ...] = ()
    array_packages: tuple[str, ...] = ()
    # How to get it: an extra of this distribution, then `remedy`, or the other one if there is no setup.py.
    extra: str = ""
    remedy: str = ""
    remedy_where_installed: str = ""
    # Environment variables that its import checks. The ImportError for a wrong value begins with the name.
    settings: tuple[str, ...] = ()
    # Its keys in backend.json, each with a function that returns the value or raises `config_schema.Wrong`.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Its options of PersistentKernel, each with a function that makes a KernelBackend from the value.
    options: Mapping[str, str] = field(default_factory=dict)
    # A function that makes a KernelBackend from a number of threads and the name of that number in errors.
    threads: str = ""
    # Backend names of other systems that it replaces.
    stands_for: Mapping[str, Absent] = field(default_factory=dict)
    # Its value of BackendType in C++, which must never change once a program may use it; None: after all
    # that have one. Its name in C++ programs that can run it: "cpu" is CpuBackend of
    # cpp_ext/program/cpu_backend.h. Without a name, programs know that it is available from Python only.
    number_in_cpp: int | None = None
    name_in_cpp: str = ""
    # Aliases for one operating system, which C++ programs accept on all.
    aliases_in_cpp: tuple[str, ...] = ()
    # Folders of cpp_ext that it shares with other backends; a wheel has them inside airllm.
    folders: tuple[str, ...] = ()
    # The module of cpp_ext/commands that builds or checks it.
    recipe: str = ""
    # The exception that reading the declaration raised.
    broken: Exception | None = None

    def how_to_get(self) -> str:
        """How to build or install the backend; "" if the declaration does not say."""
        here = (CHECKOUT / "setup.py").is_file()
        other = self.remedy if here else self.remedy_where_installed or self.remedy
        if not self.extra:
            return other
        return ", ".join(filter(None, (command(self.extra), other)))


def function(reference: str) -> Any:
    """Import the object named by "module:name"."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def shipped() -> dict[str, Declaration]:
    """The backends of this tree, in the automatic order."""
    names = [each.name for each in pkgutil.iter_modules(import_module(SHIPPED).__path__)]
    return _in_order({name: function(f"{SHIPPED}.{name}:BACKEND") for name in names})


def all_declarations() -> dict[str, Declaration]:
    """All backends: those of the automatic order, then the others of installed distributions.

    Searches at the first call, and again if `sys.path` has changed.
    """
    return _load_declarations(tuple(sys.path))


def forget() -> None:
    """Search again for backends of installed distributions at the next call."""
    _load_declarations.cache_clear()


@functools.lru_cache(maxsize=1)
def _load_declarations(_path: tuple[str, ...]) -> dict[str, Declaration]:
    from importlib.metadata import entry_points  # searching installed distributions takes milliseconds

    found = {entry.name: _read(entry) for entry in reversed(tuple(entry_points(group=GROUP)))}
    return _in_order({**shipped(), **found})


def _read(entry: EntryPoint) -> Declaration:
    """The declaration of another distribution's entry point; one without an attribute only names the kernels.

    A declaration that cannot be read becomes a backend that does not run, with the reason.
    """
    try:
        found = entry.load() if entry.attr else shipped().get(entry.name, Declaration())
        if not isinstance(found, Declaration):
            expected = f"expected an {__name__}.Declaration"
            raise TypeError(f"{entry.value} is a {type(found).__name__}, {expected}")
        module = found.module if entry.attr and found.module else entry.module
    except Exception as error:  # a foreign module may raise any exception
        found, module = Declaration(broken=error), entry.module
    packages = found.packages or ((entry.dist.name,) if entry.dist else ())
    return dataclasses.replace(found, module=module, packages=packages)


def _in_order(found: dict[str, Declaration]) -> dict[str, Declaration]:
    def place(name: str) -> tuple[bool, int, str]:
        rank = found[name].rank
        return rank is None, rank or 0, name

    return {name: found[name] for name in sorted(found, key=place)}
