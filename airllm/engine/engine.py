"""Text from a model file: `LayerWiseInferenceEngine("model.gguf").generate("Once upon a time")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from airllm.backends.api.kernel_backend import init_backend, with_threads
from airllm.engine.backend_choice import Opening, choose_backend
from airllm.engine.generation import Options, Prompt, Statistics, TextGenerator, is_batch, request
from airllm.engine.model import Model
from airllm.engine.recommended_sampling import recommended_by
from airllm.extras import require_extra
from airllm.memory.estimate import MemoryEstimate, parse_size
from airllm.memory.kv_cache import Cache, check_context, dtype_named, token_id
from airllm.memory.kv_cache_factory import CacheFactory
from airllm.progress import OnProgress
from airllm.text import turns
from airllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing's from Python 3.11 on

    from airllm.text.chat_template import ChatTemplate

__all__ = ["LayerWiseInferenceEngine"]

COMPUTE = ("stored", "float32")


class LayerWiseInferenceEngine:
    """A model of a GGUF file or Hugging Face folder, run layer by layer on this machine's fastest backend.

    `backend`: a name, or "auto": what is configured by name, else the fastest for this model, which is
    measured once where there is a device to choose; `backend_choice` says which, why, and the speeds.
    `compute`: "stored" multiplies quantized weights as they are, activations rounded to 8 bits beside them;
    "float32" is exact and slow. `context`: most tokens of a sequence (the model's own limit, at most 8192, if
    None). `cache_dtype`: "f16", "f32" or "q8_0" for keys and values.
    `max_memory`: bytes, or "512MB", that weights, keys and values and activations may take, beside what
    Python takes; layers that do not fit are read for every token. `kv_cache_dir`: a folder in which
    keys and values are files, each at once as large as the whole context takes: see `new_cache`. `threads`:
    of the backend "cpp", for this engine alone; as many as AIRLLM_NUM_THREADS says, or the processors, if
    None.
    A model's files are mapped into memory: leave them as they are while the engine is open. One that is made
    shorter meanwhile ends the process (SIGBUS); to put another in its place, rename that over it.
    After a text is made, `statistics` has numbers of it.
    Raises MemoryBudgetError for a budget too small, ModelFileError for a broken or unsupported file, OSError
    for one that cannot be opened.
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
    ):
        if compute not in COMPUTE:
            raise ValueError(f"compute has value {compute!r}, expected one of {', '.join(COMPUTE)}")
        if context is not None:
            check_context(context)
        self.path = Path(path)
        self.cache_dtype = dtype_named(cache_dtype)
        limit = None if max_memory is None else parse_size(max_memory)
        opening = Opening(path, compute != "stored", limit, context, self.cache_dtype)
        self.backend_choice = choose_backend(opening, backend)
        self.backend = init_backend(self.backend_choice.name)
        if threads is not None:
            self.backend = with_threads(self.backend, threads)
        model = opening.model(self.backend)
        self.config, self.context = model.config, model.residency.context
        self.kv_cache_dir = None if kv_cache_dir is None else Path(kv_cache_dir)
        files = () if self.kv_cache_dir is None else (self.kv_cache_dir, model.fingerprint)
        self._caches = CacheFactory(self.config, self.context, self.cache_dtype, *files)
        self._generator = TextGenerator(model, self.path, self.context, self._caches.new)

    @property
    def model(self) -> Model:
        """The layers. RuntimeError after `close`."""
        return self._generator.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened when first asked for."""
        return self._generator.tokenizer

    @property
    def statistics(self) -> Statistics | None:
        """Numbers of the last text, None before the first."""
        return self._generator.statistics

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, None if it has none; opened when first asked for."""
        with require_extra("models"):
            from airllm.text.chat_template import open_chat_template

            return open_chat_template(self.path)

    @cached_property
    def recommended_sampling(self) -> dict[str, Any]:
        """Options of `generate` that the model's makers recommend, from generation_config.json or the
        `general.sampling` keys of a GGUF file; empty where there are none. Nothing uses them unless told to:
        `engine.generate(prompt, **engine.recommended_sampling)`. The commands of `airllm` do.
        """
        return recommended_by(self.model.weights)

    def memory_estimate(self, tokens: int = 512) -> MemoryEstimate:
        """What the model takes in memory without a budget, with one sequence as long as `context`, when at
        most `tokens` go through the layers at once: weights, keys and values, activations.
        """
        return self.model.memory_estimate(self.context, self.cache_dtype, tokens)

    def new_cache(self, name: str | None = None) -> Cache:
        """An empty sequence. With `kv_cache_dir` its keys and values are in a file there, which goes with it;
        under a `name` it stays, and the sequence in it goes on when that name is asked for again: its
        tokens are in `cache.tokens`. Raises CacheFileError for a file that is not of this model and context,
        OSError if the disk has no room for it.
        """
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
        """Logits after `tokens`: (vocabulary), or (tokens, vocabulary) if `all_positions`, float32.

        `tokens` is a list of ids, which come after those in `cache`, or begin a sequence if there is none. A
        list of such lists, with a list of as many caches, is a batch: the layers' weights are read once for
        all of them. Its result is a list. `on_progress` is called with how many tokens are done, and of how
        many, where they go through the layers in several parts.
        """
        single = not tokens or not isinstance(tokens[0], (list, tuple, np.ndarray))
        batch: Any = [tokens] if single else tokens
        given: Any = [cache] if single else cache
        caches = [self.new_cache() for _ in batch] if cache is None else list(given)
        ids = [[token_id(token, "forward") for token in sequence] for sequence in batch]
        results = self.model.run(ids, caches, all_positions, on_progress)
        return results[0] if single else results

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too: the first one counts
        self, prompt: Prompt, max_new_tokens: int | None = ..., **options: Unpack[Options]
    ) -> str: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], max_new_tokens: int | None = ..., **options: Unpack[Options]
    ) -> list[str]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_new_tokens: int | None = 512,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        on_prompt: OnProgress | None = None,
    ) -> str | list[str]:
        """The text that comes after `prompt`, without it.

        `prompt`: a text, or token ids; the texts of special tokens become those tokens. A list of prompts
        gives a list: all share each pass over the weights, each with a sequence of its own.
        `max_new_tokens`: None for as many as the context takes. `temperature`: 0 takes the likeliest token
        each time, 1 draws as the model says, more is bolder. `top_k`, `top_p`, `min_p`: draw only from the k
        likeliest tokens; the likeliest ones of that probability together; those at least this times as likely
        as the likeliest. `repetition_penalty`: above 1 makes tokens that are there less likely. Their order
        is transformers': see `airllm.engine.sampling`. `seed`: the same gives the same text; each prompt of a
        list has random numbers of its own, those it would have alone. Its logits may differ from those it
        would have alone, since kernels round otherwise for many rows than for few: with stored quantized
        weights so much that the text may become another, also at temperature 0; hardly with
        compute="float32". `stop`: a text, or several, before which the answer ends. Unless you say otherwise
        the text is the likeliest one, whatever the model's makers recommend: see `recommended_sampling`.
        `on_prompt(done, of)` is called while a long prompt is read.

        The keys and values of a single prompt are kept: what the next one has in common with it, from its
        beginning, is not computed again. `statistics` says what was done, and why the text ended. Raises
        ContextFull, a ValueError, for a prompt longer than `context`; a text that fills it just ends. Warns
        with BeyondTraining of a text longer than those that the model was made for.
        """
        wanted = request(
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            on_prompt=on_prompt,
        )
        if is_batch(prompt):
            return self._generator.batch(cast("Sequence[Prompt]", prompt), wanted)
        return "".join(self._generator.stream(cast("Prompt", prompt), wanted))

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = 512, **options: Unpack[Options]
    ) -> Iterator[str]:
        """`generate`, piece by piece as the text comes: whole characters, and nothing of a stop string.

        `options` are those of `generate`. Leave off when you like: close the iterator, or let it go.
        """
        return self._generator.stream(prompt, request(max_new_tokens, **options))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        *,
        template_values: Mapping[str, Any] | None = None,
        drop_oldest: bool = False,
        **options: Unpack[Options],
    ) -> str:
        """The model's answer to `messages`, such as `[{"role": "user", "content": "Hi"}]`.

        They become a text by the model's own chat template; a content may also be None, or a list of parts
        such as `{"type": "text", "text": "Hi"}`. `template_values` are what else the template knows, such as
        `{"enable_thinking": False}`. `options` are those of `generate`. Raises ChatTemplateError, a
        ValueError, if there is no template or it refuses the messages, and ContextFull for messages longer
        than `context`. With `drop_oldest` those are answered to without their oldest turns.
        """
        answer = self.stream_chat(
            messages, max_new_tokens, template_values=template_values, drop_oldest=drop_oldest, **options
        )
        return "".join(answer)

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        *,
        template_values: Mapping[str, Any] | None = None,
        drop_oldest: bool = False,
        **options: Unpack[Options],
    ) -> Iterator[str]:
        """`chat`, piece by piece as the answer comes."""
        wanted = request(max_new_tokens, **options)
        if drop_oldest:
            messages = self.fitting(messages, max_new_tokens, template_values)
        tokens = self._conversation(messages, template_values)
        return self._generator.stream(tokens, wanted, "the conversation")

    def fitting(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        template_values: Mapping[str, Any] | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """`messages` that leave room for an answer: all, if they do; else the system prompt and the newest
        turns. Room is `max_new_tokens`, at most a quarter of `context`. Once that is short an eighth of the
        context is freed beyond it, so that the next questions begin alike. The last turn always stays.
        """
        most = self.context - turns.room_for_answer(self.context, max_new_tokens)

        def tokens(some: Sequence[Mapping[str, Any]]) -> int:
            return len(self._conversation(some, template_values))

        return turns.drop_oldest_turns(messages, tokens, most, spare=self.context // 8)

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], template_values: Mapping[str, Any] | None
    ) -> list[int]:
        """The tokens of messages, by the chat template."""
        if self.chat_template is None:
            from airllm.text.chat_template import ChatTemplateError

            raise ChatTemplateError(f"{self.path} has no chat template: use generate")
        text = self.chat_template.render(messages, **(template_values or {}))
        return self.tokenizer.encode(text, add_bos=False)

    def close(self) -> None:
        """Let go of the file and its memory. What is asked of the engine afterwards raises RuntimeError."""
        self._generator.close()

    def __repr__(self) -> str:
        if self._generator.closed:
            return f"<LayerWiseInferenceEngine {self.path.name}: closed>"
        what = f"{self.config.in_short}, {self.backend.device()}, context {self.context}"
        return f"<LayerWiseInferenceEngine {self.path.name}: {what}>"

    def __enter__(self) -> LayerWiseInferenceEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
