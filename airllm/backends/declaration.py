"""What a backend says of itself to all that lists, chooses, builds, measures or draws backends.

There is one door: an entry `name = "module:BACKEND"` whose object is a `Declaration`. A distribution has its
entry in the group `airllm.backends` of its metadata. A backend of this tree is a module of the folder
`shipped`, and its file is its entry: a checkout that is not installed has no metadata, and an editable
install has that of the day it was made. Beyond `shipped()` and `all_declarations()` nothing tells the
two apart, and no other module knows a backend by its name. Standard library only, as are the declarations.
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
    """A name that other systems have for a backend and that is none here.

    What it is called and runs on in summaries, what stands for it, and its other names.
    """

    title: str
    runs_on: str
    reason: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """A backend: where its kernels are, and what others need to know before they load them.

    Functions are given as "module:function", so that to read a declaration loads nothing else.
    """

    # The module that has the kernels, else that of the entry; `definitions`: it has none, and runs the ops'.
    module: str = ""
    definitions: bool = False
    # What it is called and runs on in summaries, and its colour in plots. Aliases are of small letters.
    title: str = ""
    runs_on: str = "other"
    aliases: tuple[str, ...] = ()
    colour: str = ""
    # Its place in the automatic order, the least first; None: it is tried where a configuration names it.
    rank: int | None = None
    # Whether backend.json as shipped names it. That order stands for that of all backends with a rank.
    in_shipped_order: bool = False
    # It computes in the host's memory: a model's weights need not go to a device.
    on_processor: bool = False
    # The distributions whose versions decide how fast it is, and packages whose arrays lie in its memory
    # though they do not say where they lie by DLPack.
    packages: tuple[str, ...] = ()
    array_packages: tuple[str, ...] = ()
    # What makes it run: an extra of this distribution, then this, or that where there is no setup.py.
    extra: str = ""
    remedy: str = ""
    remedy_where_installed: str = ""
    # Variables of the environment that its import checks; its ImportError then begins with one of them.
    settings: tuple[str, ...] = ()
    # Keys that it has in backend.json, and what checks each: returns the value, or raises `values.Wrong`.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Options of PersistentKernel, and what makes the KernelBackend of the value of each.
    options: Mapping[str, str] = field(default_factory=dict)
    # What makes the KernelBackend of a number of threads and what errors call that.
    threads: str = ""
    # Names of other systems, which are no backend here, and for which it stands.
    stands_for: Mapping[str, Absent] = field(default_factory=dict)
    # Its value of BackendType in C++, which never changes once a program may have it; None: after all that
    # have one. What C++ programs that can run it call it: "cpu" is CpuBackend of
    # cpp_ext/program/cpu_backend.h. Without one they know that it is reached from Python alone.
    number_in_cpp: int | None = None
    name_in_cpp: str = ""
    # Aliases of another system, which C++ programs know on all.
    aliases_in_cpp: tuple[str, ...] = ()
    # Folders of cpp_ext that it shares, and that travel inside its package.
    folders: tuple[str, ...] = ()
    # The module of cpp_ext/commands that builds or checks it.
    recipe: str = ""
    # What reading it has raised.
    broken: Exception | None = None

    def how_to_get(self) -> str:
        """What makes the backend run where it is not built or installed; "" if it says nothing of that."""
        here = (CHECKOUT / "setup.py").is_file()
        other = self.remedy if here else self.remedy_where_installed or self.remedy
        if not self.extra:
            return other
        return ", ".join(filter(None, (command(self.extra), other)))


def function(reference: str) -> Any:
    """The object that "module:name" means."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def shipped() -> dict[str, Declaration]:
    """The backends of this tree, in the automatic order."""
    names = [each.name for each in pkgutil.iter_modules(import_module(SHIPPED).__path__)]
    return _in_order({name: function(f"{SHIPPED}.{name}:BACKEND") for name in names})


def all_declarations() -> dict[str, Declaration]:
    """Every backend: those of the automatic order, then the others that installed distributions add.

    Looked for when first asked for, and when the path has changed.
    """
    return _load_declarations(tuple(sys.path))


def forget() -> None:
    """Look again for backends of installed distributions."""
    _load_declarations.cache_clear()


@functools.lru_cache(maxsize=1)
def _load_declarations(_path: tuple[str, ...]) -> dict[str, Declaration]:
    from importlib.metadata import entry_points  # looking through what is installed takes milliseconds

    found = {entry.name: _read(entry) for entry in reversed(tuple(entry_points(group=GROUP)))}
    return _in_order({**shipped(), **found})


def _read(entry: EntryPoint) -> Declaration:
    """What an entry of another distribution declares; without an attribute it names the kernels alone.

    What cannot be read is a backend that does not run, and says why.
    """
    try:
        found = entry.load() if entry.attr else shipped().get(entry.name, Declaration())
        if not isinstance(found, Declaration):
            expected = f"expected an {__name__}.Declaration"
            raise TypeError(f"{entry.value} is a {type(found).__name__}, {expected}")
        module = found.module if entry.attr and found.module else entry.module
    except Exception as error:  # another's module may raise anything at all
        found, module = Declaration(broken=error), entry.module
    packages = found.packages or ((entry.dist.name,) if entry.dist else ())
    return dataclasses.replace(found, module=module, packages=packages)


def _in_order(found: dict[str, Declaration]) -> dict[str, Declaration]:
    def place(name: str) -> tuple[bool, int, str]:
        rank = found[name].rank
        return rank is None, rank or 0, name

    return {name: found[name] for name in sorted(found, key=place)}
