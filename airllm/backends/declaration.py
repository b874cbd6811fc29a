"""What a backend says of itself to all that lists, chooses, builds, measures or draws backends.

There is one door: an entry `name = "module:BACKEND"`, whose object is a `Declaration`. Distributions have theirs in the group
`airllm.backends` of their metadata; a backend of this tree is a module of the folder `shipped`, and its file
is its entry. A folder, since a checkout that is not installed has no metadata, and an editable install has
those of the day it was made. Nothing tells the two kinds apart but what finds them here, and no other module
knows a backend by its name. Standard library only, as are the declarations.
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

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "airllm.backends"
SHIPPED = "airllm.backends.shipped"
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Declaration:
    """A backend: where its kernels are, and what others need to know before they load them.

    Functions are given as "module:function", so that to read a declaration loads nothing else.
    """

    module: str = ""  # that has the kernels; else the one of the entry
    definitions: bool = False  # instead of kernels it runs the ops' definitions
    title: str = ""  # in a summary; else its name
    runs_on: str = "other"
    aliases: tuple[str, ...] = ()
    # Its place in the automatic order, the least first; None: it is tried where a configuration names it.
    rank: int | None = None
    in_shipped_order: bool = False  # named by the order that backend.json is shipped with, which stands for all
    on_processor: bool = False  # computes in the host's memory: a model's weights need not go to a device
    packages: tuple[str, ...] = ()  # distributions whose versions decide how fast it is
    array_packages: tuple[str, ...] = ()  # whose arrays lie in its memory, where they do not say so by DLPack
    extra: str = ""  # of this distribution: what brings the packages
    remedy: str = ""  # what else makes it run
    remedy_where_installed: str = ""  # the same where there is no setup.py
    colour: str = ""  # in plots
    settings: tuple[str, ...] = ()  # variables of the environment that its import checks, named first in its ImportError
    keys: Mapping[str, str] = field(default_factory=dict)  # of backend.json, and what checks each: see `values.CHECKS`
    options: Mapping[str, str] = field(default_factory=dict)  # of PersistentKernel: what makes the KernelBackend of a value
    threads: str = ""  # gives the KernelBackend of (a number of threads, what errors call it)
    recipe: str = ""  # the module of cpp_ext/commands that builds or checks it
    broken: Exception | None = None  # what reading it has raised

    def how_to_get(self) -> str:
        """What makes the backend run where it is not built or installed; "" if it says nothing of that."""
        here = (CHECKOUT / "setup.py").is_file()
        other = self.remedy if here else self.remedy_where_installed or self.remedy
        if not self.extra:
            return other
        from airllm.extras import command

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


def declared() -> dict[str, Declaration]:
    """Every backend: those of the automatic order, then the others that installed distributions add.

    Looked for when first asked for, and when the path has changed.
    """
    return _declared(tuple(sys.path))


def forget() -> None:
    """Look again for backends of installed distributions."""
    _declared.cache_clear()


@functools.lru_cache(maxsize=1)
def _declared(_path: tuple[str, ...]) -> dict[str, Declaration]:
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
            raise TypeError(f"{entry.value} is a {type(found).__name__}, expected an airllm.backends.Declaration")
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
