"""How long pieces of prompts get: as long as the time allows, on models that cost nothing but arithmetic."""

import math

import pytest

from airllm.engine.scheduling.pace import STEP, Pace

SECONDS = 0.1


def settle(fixed, each, passes=40, most=4096):
    """Lengths of the passes on a model whose pass takes `fixed` seconds, and `each` more for a token."""
    pace, lengths = Pace(most), []
    for _ in range(passes):
        lengths.append(pace.tokens_within("kernels", SECONDS))
        pace.observe("kernels", lengths[-1], fixed + each * lengths[-1])
    return lengths


@pytest.mark.parametrize("fixed", (0.0, 0.001, 0.03, 0.06))
@pytest.mark.parametrize("each", (0.00002, 0.0005, 0.002))
def test_a_piece_takes_most_of_the_time_it_may_and_no_more(fixed, each):
    settled = settle(fixed, each)[20:]
    for tokens in settled:
        assert tokens % STEP == 0
        assert tokens in (STEP, 4096) or fixed + each * tokens <= SECONDS
        assert tokens == 4096 or fixed + each * (tokens + STEP) > 0.7 * SECONDS


def test_a_model_too_slow_gets_the_shortest_pieces():
    assert set(settle(0.05, 0.02)) == {STEP}


def test_the_first_piece_is_short_and_the_next_ones_grow_by_bounds():
    lengths = settle(0.0, 1e-6)
    assert lengths[0] == STEP
    assert all(b <= 4 * a for a, b in zip(lengths, lengths[1:], strict=False))
    assert lengths[-1] == 4096


def test_a_slower_pass_shortens_the_next_one():
    pace = Pace(4096)
    for tokens, took in ((64, 0.08), (64, 0.2)):
        pace.observe("kernels", tokens, took)
    assert pace.tokens_within("kernels", SECONDS) == 32


def test_other_kernels_have_a_pace_of_their_own():
    pace = Pace(4096)
    pace.observe("few", 64, 0.01)
    assert pace.tokens_within("many", SECONDS) == STEP
    assert pace.tokens_within("few", SECONDS) == 256
    assert pace.tokens_within("many", math.inf) == 4096
