"""A model that is open: what an engine has before it makes texts of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from airllm.architectures.pooling import Pooling, pooling_of
from airllm.backends.api.kernel_backend import KernelBackend, init_backend, with_threads
from airllm.engine.adapters.switch import Adapters, Given, parse_given
from airllm.engine.devices.backend_choice import Opening, choose_backend
from airllm.engine.drafts.draft_model import (
    CACHE_DTYPE,
    DraftModel,
    open_draft_model,
    reserve_memory,
    shared_vocabulary,
)
from airllm.engine.drafts.speculation import Speculation, may_speculate, require_return
from airllm.engine.embedding import NoGeneration
from airllm.engine.encoder import Encoder
from airllm.engine.generation import PromptCache, TextGenerator
from airllm.engine.model import Model
from airllm.engine.recommended_sampling import recommended_by
from airllm.engine.request import Statistics
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.memory.cache_layout import dtype_named
from airllm.memory.device_plan import DeviceOptions
from airllm.memory.estimate import MemoryEstimate, parse_size
from airllm.memory.kv_cache import Cache, check_context, token_id
from airllm.memory.kv_cache_factory import CacheFactory
from airllm.progress import OnProgress
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self  # typing's from Python 3.11 on

COMPUTE = ("stored", "float32")


class OpenedEngine:
    """An open model with its backend, tokenizer, caches and adapters, and its logits.

    The options are those of `LayerWiseInferenceEngine`, which makes texts and vectors with it.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        backend: str = "auto",
        compute: Literal["stored", "float32"] = "stored",
        context: int | None = None,
        cache_dtype: str = "f16",
        max_memory: int | str | None = None,
        kv_cache_dir: str | PathLike[str] | None = None,
        threads: int | None = None,
        speculative: bool | None = None,
        draft_model: str | PathLike[str] | None = None,
        adapter: Given = None,
        device_memory: int | str | None = None,
        gpu_layers: int | None = None,
        offload: str = "auto",
        fallback_backends: Sequence[str] = (),
    ):
        if draft_model is not None and speculative is False:
            raise ValueError(f"draft_model has value {draft_model!r}, expected None with speculative=False")
        if compute not in COMPUTE:
            raise ValueError(f"compute has value {compute!r}, expected one of {', '.join(COMPUTE)}")
        if context is not None:
            check_context(context)
        self.path = Path(path)
        self.cache_dtype = dtype_named(cache_dtype)
        limit = None if max_memory is None else parse_size(max_memory)
        room = None if device_memory is None else parse_size(device_memory, "device_memory")
        device = DeviceOptions(room, gpu_layers, offload)
        stays = (device, tuple(fallback_backends))
        opening = Opening(path, compute != "stored", limit, context, self.cache_dtype, *stays)
        self.backend_choice = choose_backend(opening, backend, fallback_backends)
        self._backend = init_backend(self.backend_choice.name)
        if threads is not None:
            self._backend = with_threads(self._backend, threads)
        with ExitStack() as undo:
            draft = None
            if draft_model is not None:
                draft = undo.enter_context(
                    closing(open_draft_model(draft_model, self._backend, fallback_backends))
                )
                require_return(draft.config, "draft_model")
                opening = dataclasses.replace(opening, max_memory=reserve_memory(draft, limit))
            model = undo.enter_context(closing(opening.model(self._backend)))
            self.config, self.context = model.config, model.residency.context
            self.kv_cache_dir = None if kv_cache_dir is None else Path(kv_cache_dir)
            files = () if self.kv_cache_dir is None else (self.kv_cache_dir, model.fingerprint)
            self._caches = CacheFactory(self.config, self.context, self.cache_dtype, *files)
            self._generator = TextGenerator(model, self.path, self.context, self._caches.new)
            self._encoder = Encoder(model) if self.config.encoding else None
            self._adapters = Adapters()
            if given := parse_given(adapter):
                self.use_adapters({self.load_adapter(path): scale for path, scale in given})
            if speculative or draft:
                require_return(model.config, "speculative" if speculative else "draft_model")
            if speculative or draft or (speculative is None and may_speculate(model)):
                drafting = self._draft_model(draft) if draft else None
                self._generator.speculation = Speculation(drafting)
            undo.pop_all()

    def _draft_model(self, draft: Model) -> DraftModel:
        """The opened draft model, ready to follow this engine's sequences."""
        path = draft.weights.path
        vocabulary = shared_vocabulary(self.tokenizer, open_tokenizer(path, draft.config.vocabulary), path)
        caches = CacheFactory(draft.config, min(self.context, draft.residency.context), CACHE_DTYPE)
        share = draft.weight_bytes / self.model.weight_bytes
        return DraftModel(draft, PromptCache(caches.new).take, vocabulary, share)

    @property
    def model(self) -> Model:
        """The model. Raises RuntimeError after `close`."""
        return self._generator.model

    @property
    def backend(self) -> KernelBackend:
        """The backend that the model runs on now: another one after a fault, with `fallback_backends`."""
        return self._backend if self._generator.closed else self.model.backend

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened on first use. Raises RuntimeError after `close`."""
        self._generator.require_open()
        return self._generator.tokenizer

    @property
    def statistics(self) -> Statistics | None:
        """Counts and times of the last text; None before the first."""
        return self._generator.statistics

    @cached_property
    def recommended_sampling(self) -> dict[str, Any]:
        """Options of `generate` that the model's makers recommend; empty if there are none.

        They come from generation_config.json, or from the `general.sampling` keys of a GGUF file. The engine
        does not use them by itself: call `engine.generate(prompt, **engine.recommended_sampling)`. The
        `airllm` commands do use them.
        """
        return recommended_by(self.model.weights)

    @cached_property
    def pooling(self) -> Pooling | None:
        """How the model's files make a vector of a text; None if they do not say it."""
        return pooling_of(self.model.weights)

    @property
    def generates(self) -> bool:
        """Whether the model writes texts. An encoder, or a decoder without its output, only makes vectors."""
        return self.config.generates

    def _require_generation(self) -> None:
        if not self.generates:
            raise NoGeneration(str(self.path), self.config.encoding is not None)

    @property
    def adapters(self) -> dict[str, float]:
        """The adapters that are loaded, and the scale of each: 0 if it is not used."""
        return dict(self._adapters.scales)

    def load_adapter(self, path: str | PathLike[str], name: str | None = None) -> str:
        """Read a LoRA adapter, a GGUF file or a folder of PEFT, and return its `name`: by default that of the
        folder, or of the file without its end. `use_adapters` uses it. Raises ModelFileError for one that
        does not fit the model, ValueError for a name that is taken.
        """
        return self._adapters.load(self.model, path, name)

    def use_adapters(self, scales: Mapping[str, float]) -> None:
        """Use these adapters, by name, each times its scale, and no others: `{}` is the model alone.

        Sequences and caches from before belong to other adapters: do not continue them. While adapters are
        used, layers run op by op. Raises ValueError for an unknown name.
        """
        self._adapters.use(self.model, scales)
        self._generator.forget()
        if self.kv_cache_dir is not None:
            self._caches.fingerprint = self.model.fingerprint

    def memory_estimate(self, tokens: int = 512) -> MemoryEstimate:
        """Bytes of weights, keys and values, and activations without a budget, for one sequence of `context`
        tokens, if at most `tokens` go through the layers at once.
        """
        return self.model.memory_estimate(self.context, self.cache_dtype, tokens)

    def new_cache(self, name: str | None = None) -> Cache:
        """An empty cache for one sequence.

        With `kv_cache_dir`, keys and values are in a file of that folder. Without a `name`, the file is
        deleted with the cache. With one, it stays: the same name reopens the sequence, whose tokens are in
        `cache.tokens`. Raises CacheFileError for a file of another model or context, OSError for a full disk,
        RuntimeError after `close`.
        """
        self._generator.require_open()
        return self._caches.new(name)

    @overload
    def forward(
        self,
        tokens: list[int],
        cache: Cache | None = ...,
        all_positions: bool = ...,
        on_progress: OnProgress | None = ...,
    ) -> np.ndarray: ...

    @overload
    def forward(
        self,
        tokens: list[list[int]],
        cache: Sequence[Cache] | None = ...,
        all_positions: bool = ...,
        on_progress: OnProgress | None = ...,
    ) -> list[np.ndarray]: ...

    def forward(
        self,
        tokens: list[int] | list[list[int]],
        cache: Cache | Sequence[Cache] | None = None,
        all_positions: bool = False,
        on_progress: OnProgress | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Logits after `tokens`, float32: (vocabulary), or (tokens, vocabulary) if `all_positions`.

        `tokens` is a list of ids. They follow those in `cache`, or begin a sequence if it is None. A list of
        such lists, with a list of caches, is a batch: it reads the layers' weights once and returns a list.
        If the tokens go through the layers in several parts, `on_progress(done, total)` is called with
        numbers of tokens. Raises ValueError for a sequence without tokens.
        """
        self._require_generation()
        single = not tokens or not isinstance(tokens[0], (list, tuple, np.ndarray))
        batch: Any = [tokens] if single else tokens
        for i, sequence in enumerate(batch):
            if not len(sequence):
                where = "tokens" if single else f"tokens[{i}]"
                raise ValueError(f"forward: {where} has 0 tokens, expected one or more")
        given: Any = [cache] if single else cache
        caches = [self.new_cache() for _ in batch] if cache is None else list(given)
        ids = [[token_id(token, "forward") for token in sequence] for sequence in batch]
        results = self.model.run(ids, caches, all_positions, on_progress)
        return results[0] if single else results

    def scheduler(self, limits: Limits = Limits()) -> Scheduler:  # noqa: B008  # frozen
        """A scheduler that serves many sequences, which come and go at any time. One thread may use it, and
        no other method of the engine that computes meanwhile.
        """
        return self._generator.scheduler(limits)

    def close(self) -> None:
        """Close the file and free its memory. Later use of the engine raises RuntimeError."""
        self._generator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
