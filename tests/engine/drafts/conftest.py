"""Fixtures of the tests of drafts."""

import numpy as np
import pytest

from airllm.engine.drafts.policy import ROWS, Choice, DraftPolicy
from tests.support.models import tiny_gguf


@pytest.fixture
def eager(monkeypatch):
    """Drafts of every size, in turn, whatever they cost."""
    sizes = np.random.default_rng(0).permutation(np.tile(ROWS[1:], 250)).tolist()

    def choose(self, kinds, seconds_per_token=0.0):
        count = sizes.pop() - 1
        return Choice(count, 1.0) if count <= len(kinds) else Choice(0, 1.0)

    monkeypatch.setattr(DraftPolicy, "choose", choose)


@pytest.fixture(scope="module")
def gguf_of(tmp_path_factory):
    """The GGUF file of a tiny model."""
    made = {}

    def find(name, stored="float"):
        if (name, stored) not in made:
            path = tmp_path_factory.mktemp("models") / f"{name}.{stored}.gguf"
            made[name, stored] = tiny_gguf.write_gguf(name, path, stored)
        return made[name, stored]

    return find
