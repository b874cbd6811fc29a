"""The kernel source for clCreateProgramWithSource: one string with all includes resolved."""

import functools
import re
from pathlib import Path

FORMS = {"gpu": "gpu", "cpu": "cpu_devices"}  # the folder of each
FAMILIES = ("elements", "rows", "rope", "matmul", "attention", "linear", "experts")
_FORMAT = re.compile(r"^  FORMAT\((\w+), (\d+), (\d+), (\d+), ", re.MULTILINE)
_INCLUDE = re.compile(r'^#(?:define BODY "(?P<body>.+)"|include (?:"(?P<file>.+)"|BODY))$', re.MULTILINE)


def folder() -> Path:
    """The folder of the kernel source: inside an installed package, next to it in a checkout."""
    here = Path(__file__).resolve().parent
    return next(f for f in (here / "gpu_kernels", here.parent / "gpu_kernels") if (f / "common").is_dir())


@functools.cache
def text(form: str, family: str) -> str:
    """The source of a family of kernels for a form, "gpu" or "cpu". "experts.FORMAT": the products with
    experts of a format. "mixture.FORMAT.SHARED": experts in two launches, with a shared expert of a format;
    a third format is that of what gates multiply. "linear_two.FORMAT.OTHER": products with matrices of two.
    "linear_two.FORMAT.SHARED": products with matrices of two formats.
    """
    name, *of = family.split(".")
    kinds = "EXPERT", "SHARED", "UP"
    before = [f"#define {kind}_FORMAT {each}\n" for kind, each in zip(kinds, of, strict=False)]
    apart = (kind for i, kind in enumerate(kinds[: len(of)]) if of[i] not in of[:i] and i)
    before += [f"#define {kind}_APART\n" for kind in apart]
    before += ["#define UP_ALONE\n"] if len(of) == len(kinds) else []
    if form == "cpu":
        before.append("#define ONE_WORK_ITEM\n")
    return "".join(before) + _resolve_includes(folder() / FORMS[form] / f"{name}.h")


@functools.cache
def stored_formats() -> dict[str, tuple[int, int, int]]:
    """For each format in formats.h: ggml's number, and the values and bytes of a block."""
    rows = _FORMAT.findall((folder() / "common" / "formats.h").read_text(encoding="utf-8"))
    return {name: (int(number), int(values), int(size)) for name, number, values, size in rows}


def _resolve_includes(path: Path, body: str = "") -> str:
    """A file with its includes inserted; the include guards in the source skip repeated headers.

    `body` is the value of BODY, the file that for_each_dtype.h includes.
    """

    def replaced(line: re.Match) -> str:
        nonlocal body
        if line["body"]:
            body = line["body"]
            return ""
        return _resolve_includes(path.parent / (line["file"] or body), body)

    return _INCLUDE.sub(replaced, path.read_text(encoding="utf-8"))
