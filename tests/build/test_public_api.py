"""The public API is what docs/public_api.txt lists: a change of it is one of that file too."""

import difflib
import inspect

from airllm import tensor_ops
from tests.support import public_api


def test_the_public_api_is_that_of_the_table():
    listed, found = public_api.TABLE.read_text(encoding="utf-8").splitlines(), public_api.lines()
    changes = [line for line in difflib.ndiff(listed, found) if line[0] in "-+"]
    assert not changes, (
        "the public API is not what docs/public_api.txt says:\n"
        + "\n".join(changes)
        + "\nIf this is meant, see "
        "'Compatibility' in CONTRIBUTING.md, then: python -m tests.support.public_api --write"
    )


def test_a_changed_signature_is_seen(monkeypatch):
    def silu(x, *, backend=None, out=None): ...

    monkeypatch.setattr(tensor_ops, "silu", silu)
    gone = {*public_api.TABLE.read_text(encoding="utf-8").splitlines()} - {*public_api.lines()}
    assert gone == {"airllm.tensor_ops.silu(x, *, out=None, backend=None)"}


def test_what_the_package_exports_is_documented():
    """A public class or function says what it does, in its own words."""
    undocumented = []
    for module, names in public_api.MODULES.items():
        home = __import__(module, fromlist=["name"])
        for name in names or public_api.exported(home):
            value = getattr(home, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value):
                undocumented.append(f"{module}.{name}")
    assert not undocumented
