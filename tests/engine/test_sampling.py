"""The choice of tokens, against transformers' logits processors and against what the words say."""

import json
from pathlib import Path

import numpy as np
import pytest

from airllm.engine import sampling
from airllm.engine.sampling import Sampler, Sampling, candidates, draw, penalize

CASES = json.loads((Path(__file__).parents[1] / "data" / "sampling.json").read_text())["cases"]
WORDS = 49152


def probabilities(logits: np.ndarray, settings: Sampling, seen: list[int]) -> np.ndarray:
    """Of every token."""
    if settings.repetition_penalty != 1:
        logits = penalize(logits, np.unique(seen), settings.repetition_penalty)
    ids, weights = candidates(logits, settings)
    whole = np.zeros(len(logits))
    whole[slice(None) if ids is None else ids] = weights
    return whole / whole.sum()


def logits_like_a_model(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(WORDS).astype(np.float32) * 3
    logits[rng.integers(0, WORDS, 30)] += 12
    return logits


@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(map(str, case["settings"].items())))
def test_probabilities_are_those_of_transformers(case):
    found = probabilities(np.array(case["logits"], np.float32), Sampling(**case["settings"]), case["seen"])
    np.testing.assert_allclose(found, case["probabilities"], atol=1e-6)


def test_probabilities_equal_transformers_now():
    """Where it is installed: the stored values are those it gives, for other logits too."""
    reference = pytest.importorskip("tests.references.sampling", reason="transformers is not installed")
    rng = np.random.default_rng(5)
    for settings in reference.SETTINGS:
        logits, seen = rng.standard_normal(3000).astype(np.float32) * 3, rng.integers(0, 3000, 50).tolist()
        found = probabilities(logits, Sampling(**settings), seen)
        np.testing.assert_allclose(found, reference.probabilities(logits, seen, settings), atol=2e-6)


@pytest.mark.parametrize("k", (1, 2, 40, 767, 768, 5000, WORDS - 1))
@pytest.mark.parametrize("extra", (0, 1, 37))
def test_largest_finds_what_sorting_finds(k, extra):
    x = np.concatenate([logits_like_a_model(k), np.full(extra, 30, np.float32)])
    x[:200] = x.max()  # ties, and all of them in a few groups
    found = sampling.top_k_places(x, k)
    last = np.sort(x)[-k]
    assert np.array_equal(found, np.flatnonzero(x >= last))


@pytest.mark.parametrize("top_p", (1e-9, 0.3, 0.95, 0.9999999, 1 - 1e-16))
@pytest.mark.parametrize("temperature", (0.1, 1.0, 30.0))
def test_top_p_is_the_fewest_tokens_that_reach_it(top_p, temperature):
    logits = logits_like_a_model()
    found = probabilities(logits, Sampling(temperature, top_p=top_p), [])
    exact = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    exact /= exact.sum()
    kept = found > 0
    assert exact[kept].sum() >= top_p - 1e-6
    assert exact[kept].sum() - exact[kept].min() <= top_p + 1e-6
    assert kept.all() or exact[kept].min() >= exact[~kept & (exact > 1e-30)].max(initial=0)


def test_temperature_zero_takes_the_likeliest():
    logits = logits_like_a_model()
    best = int(logits.argmax())
    assert Sampler(Sampling()).next(logits) == best
    for settings in (Sampling(1e-9), Sampling(1e-320), Sampling(1, top_k=1), Sampling(1, top_p=1e-9)):
        assert Sampler(settings).next(logits) == best


def test_repetition_penalty_counts_prompt_and_new_tokens_once():
    logits = np.array([2.0, 1.9, -1.0, 1.5], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=1.3), [0, 0, 0])
    assert [sampler.next(logits) for _ in range(4)] == [1, 0, 0, 0]  # 2 / 1.3, 1.9 / 1.3, 1.5
    before = logits.copy()
    assert sampler.next(logits) == 0
    assert np.array_equal(logits, before)


def test_drawn_as_often_as_likely():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    sampler = Sampler(Sampling(1.0, seed=1))
    counts = np.bincount([sampler.next(logits) for _ in range(20_000)], minlength=4)
    assert np.abs(counts / 20_000 - [0.5, 0.25, 0.125, 0.125]).max() < 0.012  # 3.4 standard deviations


def test_draws_of_a_whole_vocabulary_follow_the_weights():
    weights = np.random.default_rng(0).random(WORDS).astype(np.float32)
    weights[::3] = 0
    reached = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    for random in (0.0, 1e-12, 0.1, 0.5, 0.777, 0.9999, 1 - 2**-53):
        place = draw(weights, random)
        assert weights[place] > 0
        assert reached[place - 1] - 1e-5 <= random <= reached[place] + 1e-5


@pytest.mark.parametrize("size", (1, 255, 256, 257, 1000))
def test_no_draw_of_weight_zero(size):
    for at in (0, size // 2, size - 1):
        weights = np.zeros(size, np.float32)
        weights[at] = 1e-3
        assert {draw(weights, random) for random in (0.0, 0.5, 1 - 2**-53)} == {at}


def test_seed():
    def draw_tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed))
        return [sampler.next(logits) for _ in range(8)]

    logits = logits_like_a_model()
    assert draw_tokens(3) == draw_tokens(3) != draw_tokens(4)
    assert draw_tokens(None) != draw_tokens(None)


@pytest.mark.parametrize("logits", ([1, np.nan, 2], [1, np.inf, 2], [-np.inf] * 3))
@pytest.mark.parametrize("temperature", (0, 1))
def test_logits_that_are_no_numbers_are_refused(logits, temperature):
    with pytest.raises(FloatingPointError, match="expected finite numbers"):
        Sampler(Sampling(temperature)).next(np.array(logits, np.float32))


def test_hidden_tokens_are_never_drawn():
    logits = np.full(1000, -np.inf, np.float32)
    logits[[5, 900]] = 1
    for settings in (
        Sampling(1.0),
        Sampling(1.0, top_k=10),
        Sampling(0.5, top_p=0.99),
        Sampling(2, min_p=0.1),
    ):
        sampler = Sampler(settings)
        assert {sampler.next(logits) for _ in range(50)} == {5, 900}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    (
        ({"temperature": -1}, ValueError, "temperature has value -1, expected a number from 0 on"),
        ({"temperature": float("nan")}, ValueError, "temperature has value nan"),
        ({"temperature": "1"}, TypeError, "temperature has type str"),
        ({"top_k": 1.5}, TypeError, "top_k has type float, expected a whole number"),
        ({"top_k": -1}, ValueError, "top_k has value -1"),
        ({"top_p": 0}, ValueError, "top_p has value 0, expected a number above 0 and up to 1"),
        ({"top_p": 1.01}, ValueError, "top_p has value 1.01"),
        ({"min_p": True}, TypeError, "min_p has type bool"),
        ({"min_p": -0.1}, ValueError, "min_p has value -0.1"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty has value 0"),
        ({"seed": -5}, ValueError, "seed has value -5, expected a whole number from 0 on, or None"),
        ({"seed": "x"}, TypeError, "seed has type str"),
    ),
)
def test_wrong_settings(given, error, message):
    with pytest.raises(error, match=message):
        Sampling(**given)


def test_numpy_numbers_are_numbers():
    assert Sampling(np.float32(0.5), np.int64(3), seed=np.uint32(7)).top_k == 3
