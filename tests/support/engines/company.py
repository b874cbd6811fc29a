"""Sequences alone, and the same in company: their prompts are cut at random, and others come with them."""

import numpy as np

from tests.support.models import wide_gguf

NEW = 5  # tokens after each prompt


def tokens_of(number, count):
    return np.random.default_rng(number).integers(0, wide_gguf.VOCABULARY, count).tolist()


class Sequence:
    """A prompt and the tokens that follow it, and the logits after each of them."""

    def __init__(self, engine, number, length):
        self.prompt, self.next = tokens_of(number, length), tokens_of(number + 100, NEW)
        self.cache, self.logits, self.done = engine.new_cache(), [], 0

    @property
    def started(self):
        return self.done == len(self.prompt)


def alone(engine, number, length):
    """Each token after the prompt by itself."""
    one = Sequence(engine, number, length)
    parts = [one.prompt, *([token] for token in one.next)]
    return [engine.model.run([part], [one.cache])[0] for part in parts]


def in_company(engine, lengths, rng):
    """Sequences that come in any order, in passes with one another; prompts are cut at random."""
    waiting = [Sequence(engine, i, length) for i, length in enumerate(lengths)]
    order = rng.permutation(len(waiting)).tolist()
    coming, running = [waiting[i] for i in order], []
    while coming or running:
        for _ in range(min(len(coming), int(rng.integers(0, 4)))):
            running.append(coming.pop())
        rng.shuffle(running)
        prompts = [each for each in running if not each.started][: int(rng.integers(1, 3))]
        for some in (prompts, [each for each in running if each.started]):
            if some:
                run_pass(engine, some, rng)
        running = [each for each in running if len(each.logits) <= NEW]
    return [each.logits for each in waiting]


def run_pass(engine, some, rng):
    parts = []
    for each in some:
        if each.started:
            parts.append([each.next[len(each.logits) - 1]])
            continue
        last = min(len(each.prompt), each.done + int(rng.choice([1, 7, 16, 20, 90, 300])))
        parts.append(each.prompt[each.done : last])
        each.done = last
    wholes = [1 if len(each.logits) else len(each.prompt) for each in some]
    found = engine.model.run(parts, [each.cache for each in some], prompts=wholes)
    for each, logits in zip(some, found, strict=True):
        if each.started:
            each.logits.append(logits)
