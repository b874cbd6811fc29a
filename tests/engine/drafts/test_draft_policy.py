"""How many tokens are drafted, with a clock that is told what a call costs."""

import itertools

import numpy as np
import pytest

from airllm.engine.drafts.drafter import Kind
from airllm.engine.drafts.policy import ROWS, CallCosts, DraftPolicy

SURE, DOUBTFUL = Kind("sure", 0.9), Kind("doubtful", 0.3)
# Seconds of a call by its rows, in calls of one row: weights are read once; a processor that computes more
# than it reads; one that reads everything for each row; kernels for few rows, which end in a cliff.
MACHINES = {
    "memory": lambda rows: 1 + 0.02 * (rows - 1),
    "compute": lambda rows: 1 + 0.4 * (rows - 1),
    "no gain": lambda rows: rows,
    "cliff at 2": lambda rows: 1 if rows == 1 else 20.0,
    "cliff at 4": lambda rows: 1 + 0.1 * (rows - 1) if rows < 4 else 30.0,
    "cliff at 16": lambda rows: 1 + 0.1 * (rows - 1) if rows < 16 else 25.0,
}


class Simulation:
    """A text on a machine. `is_right(kind, place)` says whether a guess is right."""

    def __init__(self, cost, is_right, kinds, noise=lambda: 1.0):
        self.policy = DraftPolicy()
        self.cost, self.is_right, self.kinds, self.noise = cost, is_right, kinds, noise
        self.seconds, self.drafts = 0.0, False
        self.sizes: list[int] = []

    def run(self, tokens: int) -> float:
        """Generate this many tokens; returns the speed relative to that without drafts.

        A call that takes longer than a call for each of its rows may have been disturbed by another program,
        so the policy looks twice. Two such calls of each size do not count.
        """
        self.seconds, done, alone, first = 0.0, 0, 0.0, len(self.sizes)
        while done < tokens:
            kinds = self.kinds(done)
            drafted = self.policy.choose(kinds).drafts if self.policy.costs.single else 0
            self.drafts = drafted > 0
            right = 0
            while right < drafted and self.is_right(kinds[right], done + right):
                self.policy.learn(kinds[right], True)
                right += 1
            if right < drafted or (not drafted and kinds):  # without drafts, the next token shows it
                kind = kinds[right]
                self.policy.learn(kind, not drafted and self.is_right(kind, done))
            noise = self.noise()
            taken = self.cost(drafted + 1) * noise
            self.policy.add(drafted, right + 1, taken)
            self.sizes.append(drafted + 1)
            self.seconds += taken
            alone += (right + 1) * self.cost(1) * noise
            done += right + 1
        counts = {rows: self.sizes[first:].count(rows) for rows in ROWS if self.cost(rows) > rows}
        looks = sum(self.cost(rows) * min(count, 2) for rows, count in counts.items())
        return alone / (self.seconds - looks)


def always(*kinds):
    return lambda done: list(itertools.islice(itertools.cycle(kinds), 15))


def best_rate(cost, p):
    """The most tokens a call of one row can be exchanged for, if guesses are right this often."""
    return max(sum(p**i for i in range(rows)) / cost(rows) for rows in ROWS)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("p", (0.0, 0.1, 0.3, 0.5))
@pytest.mark.parametrize("kind", (SURE, DOUBTFUL))
def test_where_drafts_do_not_pay_they_cost_next_to_nothing(machine, p, kind):
    rng = np.random.default_rng(0)
    assert Simulation(MACHINES[machine], lambda *_: rng.random() < p, always(kind)).run(512) > 0.97


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("p", (0.6, 0.9, 0.99))
def test_where_drafts_pay_they_come_near_the_best_number(machine, p):
    rng = np.random.default_rng(0)
    cost = MACHINES[machine]
    simulation = Simulation(cost, lambda *_: rng.random() < p, always(SURE))
    simulation.run(512)
    assert simulation.run(2000) > 0.85 * best_rate(cost, p)


def test_one_call_is_measured_before_anything_is_drafted():
    simulation = Simulation(MACHINES["memory"], lambda *_: True, always(SURE))
    simulation.run(400)
    assert simulation.sizes[:5] == [*ROWS] and set(simulation.sizes[5:]) == {16}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_right_and_whatever_calls_cost_the_loss_is_bounded(seed):
    """The worst text: guesses are right whenever no call verifies them, and wrong otherwise."""
    rng = np.random.default_rng(seed)
    costs = dict(zip(ROWS, [1.0, *np.sort(rng.uniform(1, (3, 16)[seed % 2], 4))], strict=True))
    simulation = Simulation(costs.__getitem__, lambda *_: not simulation.drafts, always(SURE, DOUBTFUL))
    tokens = 1500
    simulation.run(tokens)
    lost = simulation.seconds - tokens
    assert lost < 0.01 * tokens + 1 + sum(costs.values())  # each size may surprise once


def test_what_is_said_now_counts_more_than_what_was_said_long_ago():
    """A text that quotes after one that does not, and again one that does not."""
    quotes = [False]
    simulation = Simulation(MACHINES["memory"], lambda *_: quotes[0], always(DOUBTFUL))
    assert simulation.run(300) > 0.97
    quotes[0] = True
    simulation.run(30)
    assert simulation.run(300) > 5
    quotes[0] = False
    assert simulation.run(300) > 0.97


def test_a_program_that_disturbs_a_few_calls_does_not_end_drafting():
    rng = np.random.default_rng(1)
    noise = lambda: 50.0 if rng.random() < 0.05 else 1.0  # noqa: E731
    simulation = Simulation(MACHINES["memory"], lambda *_: True, always(SURE), noise)
    simulation.run(300)
    sizes = len(simulation.sizes)
    simulation.run(3000)
    assert np.mean(simulation.sizes[sizes:]) > 12


def test_guesses_that_take_time_are_paid_for():
    policy = DraftPolicy()
    policy.add(0, 1, 1.0)
    assert policy.choose([SURE] * 15).drafts > 0
    assert policy.choose([SURE] * 15, seconds_per_token=2.0).drafts == 0
    before = policy.credit
    policy.add(1, 2, 1.0, seconds_drafting=1.5)
    assert policy.credit == pytest.approx(before + 2 - 2.5 + 0.02)


def test_without_a_guess_a_prior_comes_back():
    policy = DraftPolicy()
    for _ in range(50):
        policy.learn(SURE, False)
    low = policy.right(SURE)
    for _ in range(100):
        policy.forget([SURE, SURE])
    assert low < 0.01 and 0.6 < policy.right(SURE) < SURE.prior


def test_costs_are_the_median_of_the_last_calls_and_lines_between_them():
    costs = CallCosts()
    assert costs.single is None
    for seconds in (9.0, 1.0, 1.1, 0.9, 1.0):
        costs.add(1, seconds)
    assert costs.single == 1.0
    assert costs.seconds(2) == pytest.approx(1.25) and costs.seconds(16) == pytest.approx(4.75)
    costs.add(2, 1.5)
    assert costs.seconds(2) == 1.5 and costs.seconds(4) == pytest.approx(2.5)
    costs.add(8, 3.0)
    assert costs.seconds(4) == pytest.approx(2.0) and costs.seconds(16) == pytest.approx(5.0)
    costs.add(8, 1.0)  # less than the call of two rows: noise
    assert costs.seconds(16) == pytest.approx(1.0)
    for _ in range(300):
        costs.add(1, 1.0)
    assert costs.seconds(8) == pytest.approx(2.75)  # too long ago
    costs.add(8, 2.0)
    assert costs.seconds(8) == 1.0  # the less of the last two
    costs.add(8, 2.0)
    assert costs.seconds(8) == 2.0
