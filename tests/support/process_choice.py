"""The backend of the process, which each test must leave as it was.

`set_backend(get_backend())` is not enough: the backend is the same, but now it counts as named by the user,
and engines of later tests keep it without a measurement. `set_backend("auto")` restores the choice.
"""

import contextlib
from collections.abc import Iterator

import pytest

from airllm.backends import registry


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Fail if the block leaves another choice for the process, and restore the former one."""
    before = registry.process_wide
    yield
    left, registry.process_wide = registry.process_wide, before
    if left is not before and _told(left) != _told(before):
        told = f"the backend of the process was {_told(before)}, and is left as {_told(left)}"
        pytest.fail(told, pytrace=False)


def _told(choice: registry._Choice) -> tuple[str, str, str, bool]:
    """Another `Backend` of the same name counts too: a fake one may be left."""
    return choice.backend.name, choice.backend.device, choice.why, choice.named
