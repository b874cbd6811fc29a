"""Text from a model file: `LayerWiseInferenceEngine("model.gguf").generate("Once upon a time")`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, overload

import numpy as np

from airllm.backends.kernel_backend import init_backend
from airllm.models.cache import Cache
from airllm.models.model import ExactOps, Model

__all__ = ["LayerWiseInferenceEngine"]

_CHUNK = 512  # tokens of a prompt that go through the layers together
_CONTEXT = 8192  # tokens that a sequence may have, unless asked for more


class LayerWiseInferenceEngine:
    """A model of a GGUF file or Hugging Face folder, run layer by layer on this machine's best backend.

    `backend`: a name, or "auto". `compute`: "stored" multiplies quantized weights as they are, activations
    rounded to 8 bits beside them; "float32" is exact and slow. `context`: most tokens of a sequence (the
    model's own limit, at most 8192, if None). `cache_dtype`: "f16", "f32" or "q8_0" for keys and values.
    Raises ModelFileError for a broken or unsupported file, OSError for one that cannot be opened.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        backend: str = "auto",
        compute: Literal["stored", "float32"] = "stored",
        context: int | None = None,
        cache_dtype: str = "f16",
    ):
        ops = init_backend(backend)
        self.model = Model(path, ops if compute == "stored" else ExactOps(ops))
        self.config = self.model.config
        self.context = context or min(self.config.context, _CONTEXT)
        self.cache_dtype = cache_dtype

    def new_cache(self) -> Cache:
        """An empty sequence."""
        return Cache(self.config, self.context, self.cache_dtype)

    @overload
    def forward(
        self, tokens: list[int], cache: Cache | None = ..., all_positions: bool = ...
    ) -> np.ndarray: ...

    @overload
    def forward(
        self, tokens: list[list[int]], cache: Sequence[Cache] | None = ..., all_positions: bool = ...
    ) -> list[np.ndarray]: ...

    def forward(self, tokens, cache=None, all_positions=False):
        """Logits after `tokens`: (vocabulary), or (tokens, vocabulary) if `all_positions`, float32.

        `tokens` is a list of ids, which come after those in `cache`, or begin a sequence if there is none. A
        list of such lists, with a list of as many caches, is a batch: the layers' weights are read once for
        all of them. Its result is a list.
        """
        single = not tokens or not isinstance(tokens[0], (list, tuple, np.ndarray))
        batch = [tokens] if single else tokens
        caches = [self.new_cache() for _ in batch] if cache is None else [cache] if single else list(cache)
        results = self._forward([list(map(int, t)) for t in batch], caches, all_positions)
        return results[0] if single else results

    def _forward(self, batch: list[list[int]], caches: list[Cache], all_positions: bool) -> list[np.ndarray]:
        """In rounds of at most _CHUNK tokens, which all sequences share."""
        each = max(_CHUNK // len(batch), 1)
        hidden: list[list[np.ndarray]] = [[] for _ in batch]
        for start in range(0, max(map(len, batch)), each):
            going = [i for i, tokens in enumerate(batch) if len(tokens) > start]
            parts = [batch[i][start : start + each] for i in going]
            states = self.model.forward(parts, [caches[i] for i in going])
            for i, state in zip(going, states, strict=True):
                hidden[i] = [*hidden[i], state] if all_positions else [state[-1:]]
        logits = self.model.logits(np.concatenate([state for states in hidden for state in states]))
        if not all_positions:
            return list(logits)
        return np.split(logits, np.cumsum([len(tokens) for tokens in batch])[:-1])

    def close(self) -> None:
        """Let go of the file and its memory."""
        self.model.close()

    def __enter__(self) -> LayerWiseInferenceEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
