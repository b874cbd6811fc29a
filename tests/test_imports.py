"""The modules of airllm stand above each other: no import comes back to where it began."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "airllm"


def test_imports_come_back_nowhere():
    modules = {_name(path): path for path in ROOT.rglob("*.py")}
    assert len(modules) > 100
    TopologicalSorter({name: set(_imported(path, modules)) for name, path in modules.items()}).prepare()


def _name(path: Path) -> str:
    parts = ("airllm", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def _imported(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports: at its top, in functions, and for types alone.

    What the front of a package names for those who read types does not count: the front itself looks it up
    when it is asked for.
    """
    tree = ast.parse(path.read_text())
    front = path.name == "__init__.py"
    skipped = [id(each) for top in tree.body if front and isinstance(top, ast.If) for each in ast.walk(top)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            for name in (f"{node.module}.{each.name}" for each in node.names):
                yield from {name, node.module} & modules.keys() if name not in modules else [name]
        elif isinstance(node, ast.Import):
            yield from {each.name for each in node.names} & modules.keys()
