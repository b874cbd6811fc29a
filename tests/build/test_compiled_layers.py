"""Includes of the compiled code point down, in the table of ARCHITECTURE.md, and never in a circle."""

import re
from graphlib import TopologicalSorter

import checkouts
import pytest

SUFFIXES = (".h", ".inl", ".inc", ".cpp", ".cu")
ROW = re.compile(r"^\| (\d+) \| (`cpp_ext/.*?`) \| .* \| (.*) \|$", re.MULTILINE)
FILES = {path.resolve() for path in (checkouts.ROOT / "cpp_ext").rglob("*") if path.suffix in SUFFIXES}


def read_table():
    """The patterns of each layer, and the layers that it may include besides itself."""
    rows = ROW.findall((checkouts.ROOT / "ARCHITECTURE.md").read_text())
    below = {}
    for number, _, text in rows:
        spans = [span.split("-") for span in text.split(", ") if text != "nothing"]
        below[int(number)] = {i for span in spans for i in range(int(span[0]), int(span[-1]) + 1)}
    return {int(number): re.findall(r"`(.*?)`", names) for number, names, _ in rows}, below


PATTERNS, BELOW = read_table()


def layer(path):
    """The layer with the longest pattern: a folder, or files by name."""
    path = path.relative_to(checkouts.ROOT.resolve())
    matches = [
        (len(pattern), number)
        for number, patterns in PATTERNS.items()
        for pattern in patterns
        if (path.is_relative_to(pattern) if pattern.endswith("/") else path.match(pattern))
    ]
    return max(matches)[1] if matches else None


def includes(path):
    """The files of cpp_ext that a file includes by name. Kernel text for a GPU is searched for in common/."""
    names = re.findall(r'^ *# *include "(.+?)"', path.read_text(), re.MULTILINE)
    folders = (path.parent, checkouts.ROOT / "cpp_ext/include", checkouts.ROOT / "cpp_ext/gpu_kernels/common")
    found = [[file for folder in folders if (file := (folder / name).resolve()) in FILES] for name in names]
    lost = [name for name, files in zip(names, found, strict=True) if not files]
    assert not lost, f"{path} includes {lost}, which are not in cpp_ext"
    return {files[0] for files in found}


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: path.name)
def test_includes_point_down(path):
    assert layer(path) is not None, f"{path} is of no layer"
    allowed = {layer(path), *BELOW[layer(path)]}
    wrong = sorted(str(other) for other in includes(path) if layer(other) not in allowed)
    assert not wrong, f"{path} is of layer {layer(path)} and includes {wrong}"


def test_layers_are_numbered_from_the_ground_up():
    assert list(PATTERNS) == list(range(1, len(PATTERNS) + 1))
    assert all(max(below, default=0) < number for number, below in BELOW.items())


def test_there_are_no_circles():
    list(TopologicalSorter({path: includes(path) for path in FILES}).static_order())  # CycleError names one
