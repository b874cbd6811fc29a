"""What prompt lookup guesses, against a search through the whole text."""

import numpy as np
import pytest

from airllm.engine.drafts.ngram import NgramDrafter


def last_match(tokens: list[int], length: int) -> int | None:
    """The place after the last earlier occurrence of the last n-gram, by a search."""
    end = tokens[-length:]
    places = (at for at in range(len(tokens) - 1, length - 1, -1) if tokens[at - length : at] == end)
    return next(places, None) if len(tokens) > length else None


def repeated(tokens: list[int], source: int, count: int) -> list[int]:
    """What follows if the text goes on as it did from `source` on."""
    grown = list(tokens)
    for i in range(count):
        grown.append(grown[source + i])
    return grown[len(tokens) :]


@pytest.mark.parametrize("words", (2, 3, 8, 40))
def test_a_guess_goes_on_from_the_last_match_that_was_found(words):
    rng = np.random.default_rng(words)
    tokens, source = [], None
    drafter = NgramDrafter()
    for token in rng.integers(0, words, 400).tolist():
        follows = source is not None and tokens[source] == token
        tokens.append(token)
        drafter.observe([token])
        source = source + 1 if follows else last_match(tokens, 3) or last_match(tokens, 2)
        assert bool(drafter.kinds(5)) == (source is not None)
        if source is not None:
            assert drafter.propose(9) == repeated(tokens, source, 9)


def test_all_at_once_is_one_by_one():
    tokens = np.random.default_rng(0).integers(0, 4, 200).tolist()
    alone = NgramDrafter(tokens[:50])
    for token in tokens[50:]:
        alone.observe([token])
    assert NgramDrafter(tokens).propose(15) == alone.propose(15)
    assert NgramDrafter(tokens).kinds(15) == alone.kinds(15)


def test_a_text_that_repeats_itself_goes_on_doing_so():
    drafter = NgramDrafter([1, 2, 3, 9, 1, 2, 3])
    assert drafter.propose(3) == [9, 1, 2]
    assert drafter.propose(10) == [9, 1, 2, 3, 9, 1, 2, 3, 9, 1]
    assert NgramDrafter([7] * 4).propose(6) == [7] * 6


@pytest.mark.parametrize("tokens", ([], [1], [1, 2], [1, 2, 3], [1, 1], [1, 2, 1], [1, 2, 3, 4, 5, 3]))
def test_without_an_earlier_pair_there_is_no_guess(tokens):
    assert NgramDrafter(tokens).kinds(4) == []


def test_the_kind_of_a_guess_is_the_length_of_its_match():
    text = [*range(40)]
    names = [NgramDrafter([*text, *text[5 : 5 + n]]).kinds(1)[0].name for n in (2, 3, 4, 6, 9, 17, 30)]
    assert names == [f"match of {n}" for n in (2, 3, 4, 6, 9, 17, 17)]
    later = NgramDrafter([*text, *text[5:8]]).kinds(15)
    assert [kind.name for kind in later] == [
        f"match of {n}" for n in (3, 4, 4, 6, 6, 6, 9, 9, 9, 9, 9, 9, 9, 9, 17)
    ]
    priors = [kind.prior for kind in later]
    assert priors == sorted(priors)
    followed = NgramDrafter([*text, *text[5:8]])
    followed.observe(text[8:14])
    assert followed.kinds(15) == NgramDrafter([*text, *text[5:14]]).kinds(15)


def test_a_long_text_costs_no_more_per_token():
    """Counted in dictionary entries that a token adds: the lookup is one for each n-gram."""
    drafter = NgramDrafter(np.random.default_rng(0).integers(0, 1 << 30, 5000).tolist())
    before = len(drafter._after)
    drafter.observe([5])
    assert len(drafter._after) == before + 2
