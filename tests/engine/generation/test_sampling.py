"""The choice of tokens, against transformers' logits processors and against what the words say."""

import json
from pathlib import Path

import numpy as np
import pytest

from airllm.engine import sampling
from airllm.engine.sampling import Sampler, Sampling, candidates, draw, log_probabilities, penalize

CASES = json.loads((Path(__file__).parents[2] / "data" / "sampling.json").read_text())["cases"]
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
        ({"temperature": 10**400}, ValueError, "temperature has value 10000000"),
        (
            {"temperature": 10**5000},
            ValueError,
            "temperature has value of 16610 bits, expected a number from",
        ),
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
        (
            {"presence_penalty": 2.1},
            ValueError,
            "presence_penalty has value 2.1, expected a number from -2 to 2",
        ),
        ({"frequency_penalty": float("nan")}, ValueError, "frequency_penalty has value nan"),
        ({"frequency_penalty": None}, TypeError, "frequency_penalty has type NoneType"),
        ({"logit_bias": {3: 101}}, ValueError, r"logit_bias\[3\] has value 101, expected a number from -100"),
        ({"logit_bias": {-1: 1}}, ValueError, "logit_bias has value -1, expected whole numbers from 0 on"),
        ({"logit_bias": {"3": 1}}, TypeError, "logit_bias has type str, expected whole numbers from 0 on"),
        ({"logit_bias": [3]}, TypeError, "logit_bias has type list, expected a dict of token ids to numbers"),
    ),
)
def test_wrong_settings(given, error, message):
    with pytest.raises(error, match=message):
        Sampling(**given)


def test_numpy_numbers_are_numbers():
    assert Sampling(np.float32(0.5), np.int64(3), seed=np.uint32(7)).top_k == 3


# -------------------------------------------------------------------------------- OpenAI's options


def test_a_whole_number_may_have_any_number_of_digits():
    """More than a float holds: it is no error of Python's."""
    settings = Sampling(1.0, top_k=10**400, seed=10**400)
    assert 0 <= Sampler(settings).next(logits_like_a_model()) < len(logits_like_a_model())


def sequence(logits: np.ndarray, steps: int, **settings) -> list[int]:
    """Tokens sampled one after the other, from the same logits each time."""
    sampler = Sampler(Sampling(**settings), [0, 0, 1])
    return [sampler.next(logits) for _ in range(steps)]


@pytest.mark.parametrize("presence", (-1.5, 0, 0.25, 2))
@pytest.mark.parametrize("frequency", (-2, 0, 0.3, 1))
def test_penalties_are_those_of_openais_formula(presence, frequency):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c counts the tokens sampled before."""
    logits = np.random.default_rng(3).standard_normal(40).astype(np.float32)
    counts, expected = np.zeros(40), []
    for _ in range(60):
        token = int((logits - counts * frequency - (counts > 0) * presence).argmax())
        expected.append(token)
        counts[token] += 1
    assert sequence(logits, 60, presence_penalty=presence, frequency_penalty=frequency) == expected


def test_penalties_follow_the_repetition_penalty():
    logits = np.array([4, -9, 1.2], np.float32)  # tokens 0 and 1 are in the prompt
    assert sequence(logits, 3, repetition_penalty=2, presence_penalty=1) == [0, 2, 0]  # 4 / 2 - 1 < 1.2


def test_bias_is_added_before_the_temperature():
    logits = np.array([1.0, 0.0, 0.5], np.float32)
    sampler = Sampler(Sampling(0.5, seed=2, logit_bias={1: 0.75, 2: -100}))
    counts = np.bincount([sampler.next(logits) for _ in range(20_000)], minlength=3)
    weights = np.exp(np.array([1.0, 0.75, -99.5]) / 0.5)
    assert np.abs(counts / 20_000 - weights / weights.sum()).max() < 0.012
    assert sequence(logits, 1, logit_bias={2: 100}) == [2]


def test_a_bias_of_unknown_tokens_is_refused():
    biased = Sampling(logit_bias={7: 1.0})
    biased.require_known_tokens(8)
    with pytest.raises(ValueError, match="logit_bias has token 7, expected 0 to 6"):
        biased.require_known_tokens(7)


def test_options_leave_the_logits_as_they_are():
    logits = logits_like_a_model()
    before = logits.copy()
    sampler = Sampler(Sampling(presence_penalty=1, frequency_penalty=1, logit_bias={5: 3}, seed=0))
    for _ in range(3):
        sampler.next(logits, np.arange(WORDS) % 2 == 0)
    log_probabilities(logits, 5, 20)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    "settings",
    ({}, {"temperature": 1.0}, {"temperature": 3.0, "top_k": 5}, {"temperature": 1.0, "top_p": 0.5},
     {"temperature": 2.0, "min_p": 0.2}, {"logit_bias": {0: 100.0}}),
)  # fmt: skip
@pytest.mark.parametrize("count", (300, WORDS - 50), ids=("few", "most"))
def test_a_mask_allows_only_its_tokens(settings, count):
    logits = logits_like_a_model()
    logits[0] = 50
    allowed = np.random.default_rng(1).choice(np.arange(1, WORDS), count, replace=False)
    mask = np.zeros(WORDS, bool)
    mask[allowed] = True
    sampler = Sampler(Sampling(**settings, seed=4))
    assert {sampler.next(logits, mask) for _ in range(200)} <= set(allowed.tolist())


def test_a_masked_draw_has_the_probabilities_of_the_rest():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    sampler = Sampler(Sampling(1.0, seed=1))
    mask = np.array([False, True, True, False])
    counts = np.bincount([sampler.next(logits, mask) for _ in range(20_000)], minlength=4)
    assert np.abs(counts / 20_000 - [0, 2 / 3, 1 / 3, 0]).max() < 0.012


def test_a_mask_hides_the_padding_of_a_vocabulary():
    logits = np.array([1, 2, 9, 9], np.float32)
    assert Sampler(Sampling()).next(logits, np.array([True, True])) == 1
    assert Sampler(Sampling()).next(logits, np.array([True, False])) == 0
    assert Sampler(Sampling()).next(logits[:2], np.array([True, False, True])) == 0
    with pytest.raises(ValueError, match="the mask of 3 tokens allows none"):
        Sampler(Sampling()).next(logits[:2], np.array([False, False, True]))


# -------------------------------------------------------------------------------- log probabilities


@pytest.mark.parametrize("scale", (1, 30))
@pytest.mark.parametrize("top", (0, 1, 20))
def test_log_probabilities_are_those_of_float64(scale, top):
    logits = logits_like_a_model(2) * np.float32(scale)
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    token = 77
    found = log_probabilities(logits, token, top)
    assert found.token == token
    assert found.logprob == pytest.approx(exact[token], abs=1e-5)
    assert [each for each, _ in found.top] == np.argsort(-exact, kind="stable")[:top].tolist()
    np.testing.assert_allclose([value for _, value in found.top], -np.sort(-exact)[:top], atol=1e-5)


def test_log_probabilities_are_those_of_the_model():
    """No option changes them: they are of the logits that the model computed."""
    logits = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    found = log_probabilities(logits, 2, 3)
    assert np.exp(found.logprob) == pytest.approx(0.25)
    assert [token for token, _ in found.top] == [0, 1, 2]  # equal ones by their id
    assert log_probabilities(np.array([0, -np.inf], np.float32), 1).logprob == -np.inf


def test_log_probabilities_of_no_numbers_are_refused():
    with pytest.raises(FloatingPointError, match="expected finite numbers"):
        log_probabilities(np.array([0, np.nan], np.float32), 0)
