"""What tests of a scheduler share: prompts, a machine of a given speed, and what is asked of sequences."""

import numpy as np

from airllm.engine.request import request
from tests.support.engines.served import alone

CONTEXT = 1024
WORDS = 256  # tokens of bytes: no control token


def tokens_of(number, count):
    return np.random.default_rng(number).integers(0, WORDS, count).tolist()


def check(served):
    for id, asked in served.asked.items():
        served.check_text(id, alone(served.engine, asked.tokens, asked.request))


def bytes_of(engine, tokens):
    return engine.new_cache().resident_bytes(tokens)


class Machine:
    """What passes cost on a machine with a model: `base` seconds for a pass of a prompt, `token` for each of
    its tokens, `key` for each pair of a token and an earlier one, and `step` for a decode pass.
    """

    def __init__(self, served, monkeypatch, base, token, key, step):
        model, self.pieces = served.engine.model, []
        run, decode = model.run, model.decode

        def timed_run(batch, caches, *rest, prompts=None, **options):
            count = sum(map(len, batch))
            pairs = sum(len(part) * cache.length for part, cache in zip(batch, caches, strict=True))
            served.clock.now += base + token * count + key * pairs
            self.pieces.append(count)
            return run(batch, caches, *rest, prompts=prompts, **options)

        def timed_decode(tokens, caches):
            if all(len(each) == 1 for each in tokens):
                served.clock.now += step
            return decode(tokens, caches)

        monkeypatch.setattr(model, "run", timed_run)
        monkeypatch.setattr(model, "decode", timed_decode)


def cached(served, tokens, **options):
    """How many tokens of a prompt were there already, once it is done."""
    id = served.add(tokens, request(3), **options)
    served.run()
    return served.events[id][-1].statistics.cached_tokens
