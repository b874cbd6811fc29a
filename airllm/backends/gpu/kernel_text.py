"""The text of the kernels that OpenCL, CUDA and ROCm share, for compilers at run time: one string with all
includes resolved.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

FORMS = {"gpu": "gpu", "cpu": "cpu_devices"}  # the folder of each
FAMILIES = ("elements", "rows", "rope", "matmul", "attention", "linear", "experts", "recurrent")
_KINDS = ("EXPERT", "SHARED", "UP", "SHARED_UP")  # of the matrices of kernels with several formats
_FORMAT = re.compile(r"^  FORMAT\((\w+), (\d+), (\d+), (\d+), ", re.MULTILINE)
_GUARD = re.compile(r"^#ifndef AIRLLM_\w+_H$", re.MULTILINE)
_INCLUDE = re.compile(r'^#(?:define BODY "(?P<body>.+)"|include (?:"(?P<file>.+)"|BODY))$')


def folder() -> Path:
    """The folder of the kernel text: inside an installed package, next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    places = (package / "cpp_ext" / "gpu_kernels", package.parent / "cpp_ext" / "gpu_kernels")
    return next(each for each in places if (each / "common").is_dir())


@functools.cache
def text(form: str, family: str) -> str:
    """The source of a family of kernels for a form, "gpu" or "cpu". "experts.FORMAT": the products with
    experts of a format. "mixture.FORMAT.SHARED": experts in two launches, with a shared expert of a format;
    further formats are those of what gates multiply, of experts and of the shared one, where they are apart.
    "linear_beside.FORMAT.SECOND": the products of a row with matrices of these formats, at most three;
    "latent_append.FORMAT.SECOND" and "linear_merged.FORMAT.FORMAT" likewise.
    """
    name, *of = family.split(".")
    before = []
    for i, (kind, each) in enumerate(zip(_KINDS, of, strict=False)):
        if each:
            before.append(f"#define {kind}_FORMAT {each}\n")
        if each and i and each not in of[:i]:
            before.append(f"#define {kind}_APART\n")
        if each and i >= _KINDS.index("UP"):
            before.append(f"#define {kind}_ALONE\n")
    if form == "cpu":
        before.append("#define ONE_WORK_ITEM\n")
    return "".join(before) + _resolve_includes(_file_of(form, name))


def _file_of(form: str, family: str) -> Path:
    """The file of a family. It is in the folder of its subject; no two folders have files of one name."""
    (path,) = (folder() / FORMS[form]).glob(f"*/{family}.h")
    return path


@functools.cache
def stored_formats() -> dict[str, tuple[int, int, int]]:
    """For each format in formats.h: ggml's number, and the values and bytes of a block."""
    rows = _FORMAT.findall((folder() / "common" / "formats" / "formats.h").read_text(encoding="utf-8"))
    return {name: (int(number), int(values), int(size)) for name, number, values, size in rows}


def _resolve_includes(path: Path) -> str:
    """A file with its includes inserted: a header with a guard once, since compilers would skip it again."""
    inserted: set[Path] = set()

    def resolve(path: Path, body: str, surely: bool) -> Iterator[str]:
        """`body` is the value of BODY, a file that the includes in this one name. `surely`: whether no
        condition leaves the text out.
        """
        text = path.read_text(encoding="utf-8")
        depth = -1 if (guarded := _GUARD.search(text)) else 0
        if guarded and surely:
            inserted.add(path)
        for line in text.splitlines(keepends=True):
            depth += line.startswith("#if") - line.startswith("#endif")
            if (found := _INCLUDE.match(line)) is None:
                yield line
            elif found["body"]:
                body = found["body"]
            elif (other := (path.parent / (found["file"] or body)).resolve()) not in inserted:
                yield from resolve(other, body, surely and depth == 0)

    return "".join(resolve(path.resolve(), "", True))
