"""The experts that stay in memory: those that are used often."""

from collections import defaultdict

import numpy as np
import pytest

from airllm.memory.expert_cache import HALF_LIFE, ExpertCache


def zipf_passes(passes, experts, used, seed=0, exponent=1.2):
    """For each pass, `used` different experts, chosen by Zipf's law."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, experts + 1) ** exponent
    keys = np.log(weights) + rng.gumbel(size=(passes, experts))
    return np.argsort(-keys, axis=1)[:, :used], rng.permutation(experts)


def hit_rate(cache, room, passes, layers=3):
    """The part of all uses that found the expert in memory, after some passes to learn."""
    hits = uses = 0
    for at, chosen in enumerate(passes):
        cache.begin(room)
        for layer in range(layers):
            cache.expect([(layer, expert) for expert in chosen.tolist()])
            for expert in chosen.tolist():
                if at >= len(passes) // 3:
                    hits, uses = hits + ((layer, expert) in cache), uses + 1
                cache.use((layer, expert))
                assert len(cache) <= room and (layer, expert) in cache
    return hits / uses


@pytest.mark.parametrize("room", (12, 40, 100))
def test_the_hit_rate_is_near_that_of_the_best_fixed_choice(room):
    passes, _ = zipf_passes(1500, 64, 4)
    counts = np.bincount(passes[500:].ravel(), minlength=64)
    fixed = room - 1  # one place is for the expert in use
    best = np.sort(np.repeat(counts, 3))[::-1][:fixed].sum() / (3 * counts.sum())
    assert hit_rate(ExpertCache(), room, passes) > 0.93 * best


def test_other_texts_use_other_experts():
    passes, names = zipf_passes(2000, 64, 4)
    before, after = hit_rate(cache := ExpertCache(), 40, passes), hit_rate(cache, 40, names[passes])
    assert after > 0.9 * before


def test_experts_against_a_simple_model():
    rng = np.random.default_rng(1)
    cache, uses, inside, now = ExpertCache(), defaultdict(float), set(), 0
    for _ in range(400):
        now, room = now + 1, int(rng.integers(2, 12))
        gone = cache.begin(room)
        worst = sorted(inside, key=lambda each: (uses[each], each))[: max(len(inside) - room, 0)]
        assert set(gone) == set(worst)
        inside -= set(gone)
        needed = {(0, int(each)) for each in rng.zipf(1.5, 3) % 20}
        cache.expect(needed)
        for each in sorted(needed):
            gone = cache.use(each)
            uses[each] += 2 ** (now / HALF_LIFE)
            needed = needed - {each}
            for other in gone:
                rank = lambda key: (key in needed, uses[key], key)  # noqa: E731, B023
                assert rank(other) == min(map(rank, inside))
                inside.remove(other)
            assert bool(gone) == (each not in inside and len(inside) + 1 + len(gone) > room)
            inside.add(each)
            assert set(cache) == inside and len(inside) <= room


def test_counts_that_grow_for_ever_are_rescaled(monkeypatch):
    passes, _ = zipf_passes(600, 32, 3)
    expected = ExpertCache()
    rate = hit_rate(expected, 20, passes)
    monkeypatch.setattr("airllm.memory.expert_cache._MOST", 1.5)
    rescaled = ExpertCache()
    assert hit_rate(rescaled, 20, passes) == pytest.approx(rate, abs=0.01)
    assert rescaled._weight <= 1.51 < expected._weight
