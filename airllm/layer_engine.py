"""Text from a model file: `LayerWiseInferenceEngine("model.gguf").generate("Once upon a time")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from airllm.backends.kernel_backend import init_backend
from airllm.models import generation
from airllm.models.cache import Cache, dtype_named
from airllm.models.generation import Options, Prompt, Statistics
from airllm.models.memory import MemoryEstimate, parse_size
from airllm.models.model import ExactOps, Model
from airllm.models.tokenizer import Tokenizer, open_tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing's from Python 3.11 on

    from airllm.models.chat import ChatTemplate

__all__ = ["LayerWiseInferenceEngine"]


class LayerWiseInferenceEngine:
    """A model of a GGUF file or Hugging Face folder, run layer by layer on this machine's best backend.

    `backend`: a name, or "auto". `compute`: "stored" multiplies quantized weights as they are, activations
    rounded to 8 bits beside them; "float32" is exact and slow. `context`: most tokens of a sequence (the
    model's own limit, at most 8192, if None). `cache_dtype`: "f16", "f32" or "q8_0" for keys and values.
    `max_memory`: bytes, or "512MB", that weights, keys and values and activations may take, beside what
    Python takes; layers that do not fit are read for every token. `kv_cache_dir`: a folder in which
    keys and values are files: see `new_cache`.
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
    ):
        self.path = Path(path)
        self.backend = init_backend(backend)
        self.cache_dtype = dtype_named(cache_dtype)
        ops = self.backend if compute == "stored" else ExactOps(self.backend)
        limit = None if max_memory is None else parse_size(max_memory)
        self._model: Model | None = Model(path, ops, limit, context, self.cache_dtype)
        self.config = self._model.config
        self.context = self._model.residency.context
        self.kv_cache_dir = None if kv_cache_dir is None else Path(kv_cache_dir)
        self._kept = generation.PromptCache(self.new_cache)
        self.statistics: Statistics | None = None

    @property
    def model(self) -> Model:
        """The layers. RuntimeError after `close`."""
        if self._model is None:
            raise RuntimeError(f"the engine of {self.path} is closed: open another one")
        return self._model

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened when first asked for."""
        return open_tokenizer(self.path)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, None if it has none; opened when first asked for."""
        from airllm.models.chat import open_chat_template

        return open_chat_template(self.path)

    def memory_estimate(self, tokens: int = 512) -> MemoryEstimate:
        """What the model takes in memory without a budget, with one sequence as long as `context`, when at
        most `tokens` go through the layers at once: weights, keys and values, activations.
        """
        return self.model.memory_estimate(self.context, self.cache_dtype, tokens)

    def new_cache(self, name: str | None = None) -> Cache:
        """An empty sequence. With `kv_cache_dir` its keys and values are in a file there, which goes with it;
        under a `name` it stays, and the sequence in it goes on when that name is asked for again: its
        tokens are in `cache.tokens`. Raises CacheFileError for a file that is not of this model and context.
        """
        if self.kv_cache_dir is None:
            if name is not None:
                raise ValueError(
                    f"new_cache: name has value {name!r}, expected none without kv_cache_dir=..."
                )
            return Cache(self.config, self.context, self.cache_dtype)
        from airllm.models.cache_file import FileCache  # not on Windows

        where = (self.kv_cache_dir, name, self.model.fingerprint)
        return FileCache(self.config, self.context, self.cache_dtype, *where)

    @overload
    def forward(
        self, tokens: list[int], cache: Cache | None = ..., all_positions: bool = ...
    ) -> np.ndarray: ...

    @overload
    def forward(
        self, tokens: list[list[int]], cache: Sequence[Cache] | None = ..., all_positions: bool = ...
    ) -> list[np.ndarray]: ...

    def forward(
        self,
        tokens: list[int] | list[list[int]],
        cache: Cache | Sequence[Cache] | None = None,
        all_positions: bool = False,
    ) -> np.ndarray | list[np.ndarray]:
        """Logits after `tokens`: (vocabulary), or (tokens, vocabulary) if `all_positions`, float32.

        `tokens` is a list of ids, which come after those in `cache`, or begin a sequence if there is none. A
        list of such lists, with a list of as many caches, is a batch: the layers' weights are read once for
        all of them. Its result is a list.
        """
        single = not tokens or not isinstance(tokens[0], (list, tuple, np.ndarray))
        batch: Any = [tokens] if single else tokens
        given: Any = [cache] if single else cache
        caches = [self.new_cache() for _ in batch] if cache is None else list(given)
        results = self._forward([list(map(int, t)) for t in batch], caches, all_positions)
        return results[0] if single else results

    def _forward(self, batch: list[list[int]], caches: list[Cache], all_positions: bool) -> list[np.ndarray]:
        """In rounds that all sequences share, equally long: kernels may round otherwise for a few tokens."""
        asked = list(map(len, batch))
        batch = [self.model.pending(*pair) for pair in zip(batch, caches, strict=True)]
        longest = max(map(len, batch))
        rounds = -(-longest // max(self.model.residency.chunk // len(batch), 1))
        if rounds == 1 and not all_positions:
            return list(self.model.decode(batch, caches))
        each = -(-longest // max(rounds, 1)) or 1
        hidden: list[list[np.ndarray]] = [[] for _ in batch]
        for start in range(0, longest, each):
            going = [i for i, tokens in enumerate(batch) if len(tokens) > start]
            parts = [batch[i][start : start + each] for i in going]
            states = self.model.forward(parts, [caches[i] for i in going])
            for i, state in zip(going, states, strict=True):
                hidden[i] = [*hidden[i], state] if all_positions else [state[-1:]]
        logits = self.model.logits(np.concatenate([state for states in hidden for state in states]))
        if not all_positions:
            return list(logits)
        each_of = np.split(logits, np.cumsum([len(tokens) for tokens in batch])[:-1])
        return [rows[len(rows) - count :] for rows, count in zip(each_of, asked, strict=True)]

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
    ) -> str | list[str]:
        """The text that comes after `prompt`, without it.

        `prompt`: a text, or token ids; the texts of special tokens become those tokens. A list of prompts
        gives a list: all share each pass over the weights, each with a sequence of its own.
        `max_new_tokens`: None for as many as the context takes. `temperature`: 0 takes the likeliest token
        each time, 1 draws as the model says, more is bolder. `top_k`, `top_p`, `min_p`: draw only from the k
        likeliest tokens; the likeliest ones of that probability together; those at least this times as likely
        as the likeliest. `repetition_penalty`: above 1 makes tokens that are there less likely. Their order
        is transformers': see `airllm.models.sampling`. `seed`: the same gives the same text; each prompt of a
        list draws as it would alone. `stop`: a text, or several, before which the answer ends.

        The keys and values of a single prompt are kept: what the next one has in common with it, from its
        beginning, is not computed again. `statistics` says what was done, and why the text ended. Raises
        ContextFull, a ValueError, for a prompt longer than `context`; a text that fills it just ends.
        """
        wanted = generation.request(
            max_new_tokens,
            stop,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        if not generation.is_batch(prompt):
            return "".join(self._stream(generation.encoded(self, cast("Prompt", prompt)), wanted))
        each_of = enumerate(cast("Sequence[Prompt]", prompt))
        prompts = [generation.encoded(self, each, f"prompt {i}") for i, each in each_of]
        return generation.batch(self, prompts, wanted, self._done) if prompts else []

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = 512, **options: Unpack[Options]
    ) -> Iterator[str]:
        """`generate`, piece by piece as the text comes: whole characters, and nothing of a stop string.

        `options` are those of `generate`. Leave off when you like: close the iterator, or let it go.
        """
        wanted = generation.request(max_new_tokens, **options)
        return self._stream(generation.encoded(self, prompt), wanted)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        *,
        template_values: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> str:
        """The model's answer to `messages`, such as `[{"role": "user", "content": "Hi"}]`.

        They become a text by the model's own chat template; `template_values` are what else that one knows,
        such as `{"enable_thinking": False}`. `options` are those of `generate`. Raises ChatTemplateError, a
        ValueError, if there is no template or it refuses the messages.
        """
        answer = self.stream_chat(messages, max_new_tokens, template_values=template_values, **options)
        return "".join(answer)

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        *,
        template_values: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Iterator[str]:
        """`chat`, piece by piece as the answer comes."""
        from airllm.models.chat import ChatTemplateError

        wanted = generation.request(max_new_tokens, **options)
        if self.chat_template is None:
            raise ChatTemplateError(f"{self.path} has no chat template: use generate")
        text = self.chat_template.render(messages, **(template_values or {}))
        tokens = self.tokenizer.encode(text, add_bos=False)
        return self._stream(generation.encoded(self, tokens, "the conversation"), wanted)

    def _stream(self, tokens: list[int], wanted: generation.Request) -> Iterator[str]:
        return generation.stream(self, self._kept, tokens, wanted, self._done)

    def _done(self, statistics: Statistics) -> None:
        self.statistics = statistics

    def close(self) -> None:
        """Let go of the file and its memory. What is asked of the engine afterwards raises RuntimeError."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._kept.clear()

    def __repr__(self) -> str:
        if self._model is None:
            return f"<LayerWiseInferenceEngine {self.path.name}: closed>"
        what = f"{self.config.in_short}, {self.backend.device()}, context {self.context}"
        return f"<LayerWiseInferenceEngine {self.path.name}: {what}>"

    def __enter__(self) -> LayerWiseInferenceEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
