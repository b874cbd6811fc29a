"""Imports point down: from the command line to formats, never back up, and never in a circle."""

import ast
from graphlib import TopologicalSorter

import checkouts
import pytest

# From the ground up. A module belongs to the longest of these names that its own begins with; modules of one
# layer may import each other, those of a lower layer, and nothing else.
LAYERS = (
    (
        "airllm.cache_folder",
        "airllm.cpp_program",
        "airllm.extras",
        "airllm.progress",
        "airllm.readable",
        "airllm.writable",
    ),
    ("airllm.backends",),
    ("airllm.ops", "airllm.formats"),
    ("airllm.tensor_ops", "airllm.tensor_ops_hybrid"),
    ("airllm.backends.api", "airllm.backends.device", "airllm.backends.gpu"),
    ("airllm.files",),
    ("airllm.architectures", "airllm.text"),
    ("airllm.memory",),
    ("airllm.engine", "airllm.layer_engine", "airllm.auto_model", "airllm.persistent_kernel"),
    ("airllm.convert", "airllm.bench"),
    ("airllm.serving",),
    ("airllm.batch", "airllm.ray"),
    ("airllm.cli", "airllm.__main__"),
)
DOORS = ("airllm", "airllm.backends")  # they name what is above them, and import it when it is asked for


def modules():
    paths = (checkouts.ROOT / "airllm").rglob("*.py")
    names = {path: ".".join(path.relative_to(checkouts.ROOT).with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


MODULES = modules()


def find_imports(name):
    """The modules of airllm that this one imports anywhere, in functions too."""
    nodes = list(ast.walk(ast.parse(MODULES[name].read_text())))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), f"{name} has a relative import, which is not read here"
    whole = {(node.module, f"{node.module}.{alias.name}") for node in froms for alias in node.names}
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return (plain | {long if long in MODULES else short for short, long in whole}) & set(MODULES)


def layer(name):
    parts = [".".join(name.split(".")[:count]) for count in range(len(name.split(".")), 0, -1)]
    return next((i for part in parts for i, names in enumerate(LAYERS) if part in names), None)


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(DOORS)))
def test_imports_point_down(name):
    assert layer(name) is not None, f"{name} is of no layer"
    above = sorted(other for other in find_imports(name) - {"airllm"} if layer(other) > layer(name))
    assert not above, f"{name} imports {above}"


def test_there_are_no_circles():
    graph = {name: find_imports(name) - {name, *DOORS} for name in set(MODULES) - set(DOORS)}
    list(TopologicalSorter(graph).static_order())  # CycleError names one
