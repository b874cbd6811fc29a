"""What tests of drafts share: samplings, a drafter that knows texts, and engines of the C++ backend."""

import numpy as np
import pytest

from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.drafts.draft_model import KIND
from airllm.layer_engine import LayerWiseInferenceEngine

GREEDY, SEEDED = {}, {"temperature": 0.9, "top_k": 40, "seed": 11}
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "penalty": {**SEEDED, "repetition_penalty": 1.2, "min_p": 0.02},
}
samplings = pytest.mark.parametrize("options", SAMPLINGS.values(), ids=SAMPLINGS)
cpp = pytest.mark.skipif(
    not KernelBackend("cpp").extension("decode_step"), reason="the C++ backend is not built"
)


class Knowing:
    """Drafts from texts that it knows, and errs now and then."""

    free, seconds = True, 0.0

    def __init__(self, known, errors=0.15):
        self._known, self._errors = known, errors
        self._random = np.random.default_rng(1)

    def __call__(self, tokens):
        self._tokens = list(tokens)
        return self

    def seconds_per_token(self, single):
        return 0.0

    def kinds(self, most):
        return [KIND] * min(most, len(self._continuation()))

    def propose(self, count):
        guess = self._continuation()[:count]
        return [token ^ 1 if self._random.random() < self._errors else token for token in guess]

    def observe(self, tokens):
        self._tokens += tokens

    def _continuation(self):
        count = len(self._tokens)
        return next((text[count:] for text in self._known if text[:count] == self._tokens), [])


def open_engine(path, **options):
    return LayerWiseInferenceEngine(path, backend="cpp", **options)
