"""How calls of a C++ compiler are spelled: by GCC and Clang, and by clang-cl, which takes MSVC's options.

MSVC's own `cl` cannot compile the kernels: they are written with the vectors of GCC and Clang.
"""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

MSVC = "MSVC's cl has no vector types, which the kernels are written with"
CLANG_CL = "install Clang for Windows (a component of Visual Studio), or set CXX=clang-cl"


@dataclass(frozen=True)
class Spelling:
    """The options of a kind of compiler: to compile, to compile alone, to link a module, for a folder of
    headers, and where the output of each of the two calls goes.
    """

    compile: tuple[str, ...]
    alone: str
    link: tuple[str, ...]
    include: str
    output_object: str
    output_module: str


GNU = Spelling(
    ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-DNDEBUG"),
    "-c", ("-pthread", "-shared"), "-I", "-o ", "-o ",
)  # fmt: skip
APPLE = Spelling(
    GNU.compile, GNU.alone, ("-pthread", "-bundle", "-undefined", "dynamic_lookup"), "-I", "-o ", "-o "
)
# /MD: Python's own runtime library; /bigobj: there are more functions than an object usually has
CL = Spelling(
    ("/nologo", "/O2", "/clang:-O3", "/std:c++17", "/EHsc", "/MD", "/bigobj", "/W3", "/DNDEBUG"),
    "/c", ("/nologo", "/LD", "/MD"), "/I", "/Fo", "/Fe",
)  # fmt: skip


def spelling_of(command: list[str], platform: str = sys.platform) -> Spelling:
    """How this compiler's options are spelled, by the name of its program."""
    if is_clang_cl(command):
        return CL
    return APPLE if platform == "darwin" else GNU


def is_clang_cl(call: list[str]) -> bool:
    """Whether it is clang-cl, also under the name of clang."""
    return _program(call) == "clang-cl" or "--driver-mode=cl" in call


def why_unusable(command: list[str]) -> str:
    """Why this compiler cannot compile the kernels, "" if its name does not say so."""
    return MSVC if command and _program(command) == "cl" else ""


def with_output(call: list[str], path: str) -> list[str]:
    """A compiler's call with its output: options of the linker come last, after clang-cl's /link."""
    spelling = spelling_of(call)
    option = spelling.output_object if spelling.alone in call else spelling.output_module
    output = [option.strip(), path] if option.endswith(" ") else [option + path]
    at = call.index("/link") if "/link" in call else len(call)
    return [*call[:at], *output, *call[at:]]


def linker_options(command: list[str], user: list[str]) -> list[str]:
    """What comes after the objects of a module: where Windows has Python's library, and the user's."""
    if not is_clang_cl(command):
        return user
    base = sysconfig.get_config_var("installed_base") or sys.base_prefix
    return ["/link", f"/LIBPATH:{Path(base) / 'libs'}", *user]


def _program(command: list[str]) -> str:
    name = PureWindowsPath(command[0]).name.lower() if command else ""  # splits at both kinds of slash
    return name.removesuffix(".exe")
