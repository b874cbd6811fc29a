"""Text from a model file: `LayerWiseInferenceEngine("model.gguf").generate("Once upon a time")`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from airllm.architectures.pooling import Pooling, pooling_of
from airllm.backends.api.kernel_backend import KernelBackend, init_backend, with_threads
from airllm.engine.adapters.switch import Adapters, Given, parse_given
from airllm.engine.answer import Answer, join
from airllm.engine.devices.backend_choice import Opening, choose_backend
from airllm.engine.drafts.draft_model import (
    CACHE_DTYPE,
    DraftModel,
    open_draft_model,
    reserve_memory,
    shared_vocabulary,
)
from airllm.engine.drafts.speculation import Speculation, may_speculate, require_return
from airllm.engine.embedding import Embedder, NoEmbeddings, NoGeneration, cut_text
from airllm.engine.generation import Prompt, PromptCache, TextGenerator, is_batch
from airllm.engine.layers.encoder import Encoder
from airllm.engine.model import Model
from airllm.engine.recommended_sampling import recommended_by
from airllm.engine.request import Options, Request, Statistics, request
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.extras import require_extra
from airllm.memory.cache_layout import dtype_named
from airllm.memory.device_plan import DeviceOptions
from airllm.memory.estimate import MemoryEstimate, parse_size
from airllm.memory.kv_cache import Cache, ContextFull, check_context, token_id
from airllm.memory.kv_cache_factory import CacheFactory
from airllm.progress import OnProgress
from airllm.text import turns
from airllm.text.grammar import Grammars
from airllm.text.grammar.grammars import FORMS
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing's from Python 3.11 on

    from airllm.text.answers import AnswerFormat
    from airllm.text.chat_template import ChatTemplate

__all__ = ["LayerWiseInferenceEngine"]

COMPUTE = ("stored", "float32")


class LayerWiseInferenceEngine:
    """Generates text with the model of a GGUF file or a Hugging Face folder.

    Args:
        path: The GGUF file or the folder.
        backend: A name, or "auto": the backend that the configuration names, else the fastest for this model.
            If there is a device to choose, speeds are measured once. `backend_choice` has the backend, the
            reason and the speeds.
        compute: "stored" multiplies quantized weights as stored and rounds activations to 8 bits; "float32"
            is exact and slow.
        context: Maximum number of tokens of a sequence. None: the model's limit, at most 8192.
        cache_dtype: "f16", "f32" or "q8_0", for keys and values.
        max_memory: Bytes, or a text such as "512MB", for weights, keys and values, and activations. Python's
            own memory is not counted. Layers that do not fit are read again for each token. None: what the
            model needs or, if less is available, that. `airllm info` says what a token then costs.
        kv_cache_dir: A folder for files of keys and values. Each file is allocated for a full context at
            once: see `new_cache`.
        threads: Threads of the backend "cpp", for this engine only. None: AIRLLM_NUM_THREADS, else one for
            each processor.
        speculative: Guess the next tokens of a single prompt, verify all guesses in one pass and keep those
            that are right: faster where a text repeats its prompt or itself. Passes are measured, and nothing
            is guessed where that does not pay. Not for models with a recurrent state, which cannot take a
            guess back. None: if it cannot change the text, because the backend
            computes a row with the same bits beside others ("cpp"), or if there is a `draft_model`.
        draft_model: The GGUF file or the folder of a smaller model with the same tokenizer, which guesses
            too. It runs on the same backend.
        adapter: A LoRA adapter that is used from the beginning: a GGUF file or a folder of PEFT, or a pair of
            it and its scale, or a list of them. See `use_adapters`. Its matrices are in memory, beyond
            `max_memory`.

        device_memory: Bytes, or a text, of the device's memory for this model, where the backend keeps models
            on its device ("opencl", "webgpu"). None: what is free there. If it is less than the model needs,
            only some layers stay there.
        gpu_layers: How many layers stay on the device. None: as many as fit.
        offload: What happens to the other layers. "split": they are the first ones and run on the processor,
            with their keys and values. "stream": they are uploaded in each pass, each while the one before is
            computed. "auto": "split" with gpu_layers, else what is faster, as measured.

        fallback_backends: Names of backends. The first that runs is taken if `backend` does not run here, and
            goes on with the text if a device fails: it is lost, its memory is full, or its driver does not
            compile a kernel. A BackendFallback warning says so.

    Model files are memory-mapped: do not change them while the engine is open. Truncating one ends the
    process (SIGBUS). To replace one, rename the new file over it. `statistics` describes the last text.

    Raises MemoryBudgetError if the budget, or the memory, is too small, ModelFileError for a broken or
    unsupported file, OSError for a file that cannot be opened, ValueError for a draft model with another
    tokenizer.
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
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, opened on first use; None if it has none."""
        with require_extra("models"):
            from airllm.text.chat_template import open_chat_template

            return open_chat_template(self.path)

    @cached_property
    def grammars(self) -> Grammars:
        """Compiled grammars of the model's tokenizer."""
        return Grammars(self.tokenizer)

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

    def embed(
        self,
        text: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool | int = False,
    ) -> np.ndarray:
        """The vector (width), float32, of a text, or those (texts, width) of several.

        Pooling, what follows it, and the tokens around a text are as the model's files say. `prompt`: put
        before each text, such as "query: "; `prompt_name`: the name of a prompt in the files, as in
        sentence-transformers: see `pooling.prompts`. Without either, it is the files' default prompt, if they
        have one. `truncate`: leave out the end of a text that has more tokens than this; True: than the files
        say for sentence-transformers, or else `context`. The tokens around a text stay. Raises NoEmbeddings,
        a ValueError, for a model that generates texts, ContextFull for a text that is longer than `context`,
        and ValueError for an unknown name.
        """
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        batch = [self.tokens_to_embed(each, prompt_name, prompt, truncate) for each in texts]
        found = self.embed_tokens(batch)
        return found[0] if single else found

    def tokens_to_embed(
        self,
        text: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool | int = False,
    ) -> list[int]:
        """The tokens of a text after a prompt, with those that the model's makers put around it."""
        if prompt is not None and prompt_name is not None:
            raise ValueError(f"embed: prompt_name has value {prompt_name!r}, expected None beside a prompt")
        if prompt is None and self.pooling is not None:
            prompt = self.pooling.prompt(prompt_name)
        closing = self.tokenizer.closing_id
        tokens = self.tokenizer.encode((prompt or "") + text) + ([] if closing is None else [closing])
        return self.truncate_tokens(tokens, truncate)

    def truncate_tokens(self, tokens: list[int], truncate: bool | int = True) -> list[int]:
        """As `embed`, of the tokens of a text. Raises ValueError for a number that leaves nothing of it."""
        if truncate is False:
            return tokens
        closing, most = self.tokenizer.closing_id, int(truncate)
        if truncate is True:
            most = min(self.context, (self.pooling and self.pooling.longest) or self.context)
        least = 1 + self.tokenizer.add_bos + (closing is not None)
        if not least <= most <= self.context:
            expected = f"True, False, or {least} to {self.context}"
            raise ValueError(f"embed: truncate has value {most}, expected {expected}")
        return cut_text(tokens, most, closing)

    def embed_tokens(self, batch: Sequence[list[int]]) -> np.ndarray:
        """As `embed`, (texts, width), of tokens. Raises ValueError for a text without tokens."""
        if any(not len(tokens) for tokens in batch):
            raise ValueError("embed: a text has 0 tokens, expected one or more")
        if (longest := max(map(len, batch), default=0)) > self.context:
            expected = f"at most {self.context}, the context; truncate leaves out the end of a text"
            raise ContextFull(f"embed: a text has {longest} tokens, expected {expected}")
        return self.embedder.embed(batch)

    @cached_property
    def embedder(self) -> Embedder:
        """What makes vectors of tokens. Raises NoEmbeddings if the files do not say how."""
        if self.pooling is None:
            expected = "pooling_type in a GGUF file, or modules.json of sentence-transformers in a folder"
            raise NoEmbeddings(f"{self.path} does not say how a text becomes a vector, expected {expected}")
        return Embedder(self.model, self.pooling, self._encoder, self.new_cache)

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

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is also a Sequence[str]: the first overload wins
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
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        json_schema: Any = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        stop: str | Sequence[str] = (),
        on_prompt: OnProgress | None = None,
    ) -> str | list[str]:
        """The text that follows `prompt`, without the prompt.

        Args:
            prompt: A text or token ids. In a text, special tokens are encoded as such. A list of prompts
                returns a list of texts. The prompts share each pass over the weights, and common
                prefixes; each has its own sequence.
            max_new_tokens: None for as many as the context has room for.
            temperature: 0 takes the most likely token, 1 samples from the model's distribution, more is
                more random.
            top_k: Sample only from the k most likely tokens; 0 for all.
            top_p: Sample only from the most likely tokens that together have this probability.
            min_p: Sample only from tokens at least this times as likely as the most likely one.
            repetition_penalty: Above 1 makes the tokens of the sequence less likely.
            seed: The same seed gives the same text. Each prompt of a list draws the random numbers that it
                would draw alone.
            presence_penalty: From -2 to 2, subtracted from the logits of tokens that were generated before.
                Unlike `repetition_penalty`, it does not count the prompt.
            frequency_penalty: The same, once for each time that the token was generated.
            logit_bias: Token id -> a number from -100 to 100 that is added to its logit.
            json_schema: The text is JSON that this schema describes: a dict, JSON text or a Pydantic model;
                `{"type": "object"}` is any object. Raises GrammarError, a ValueError, for a schema with a
                keyword that cannot be enforced: see `airllm.text.grammar`.
            regex: The whole text matches this regular expression of ECMAScript.
            choices: The text is one of these.
            stop: A text, or several. The result ends before the first of them.
            on_prompt: `on_prompt(done, total)` is called while a long prompt is processed.

        The sampling options apply in transformers' order: see `airllm.engine.sampling`. The defaults give the
        most likely text, whatever the model's makers recommend: see `recommended_sampling`.

        On the C++ backend, the logits of a prompt in a list are those it has alone, bit for bit, unless it is
        longer than 48 tokens and a matrix of the model has more than two million float32 values. On other
        backends, kernels may round differently for many rows, and with quantized weights the text may differ,
        even at temperature 0. With compute="float32" it hardly ever does.

        The keys and values of a single prompt are kept. The next prompt does not recompute a common prefix.
        `statistics` has counts, times and the reason why the text ended.

        Raises ContextFull, a ValueError, for a prompt longer than `context`. A text that fills the context
        ends there. Warns with BeyondTraining if a text grows longer than the model was trained for.
        """
        wanted = self._request(
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias or {},
            json_schema=json_schema,
            regex=regex,
            choices=choices,
            stop=stop,
            on_prompt=on_prompt,
        )
        if is_batch(prompt):
            return self._generator.batch(cast("Sequence[Prompt]", prompt), wanted)
        return "".join(self._generator.stream(cast("Prompt", prompt), wanted))

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = 512, **options: Unpack[Options]
    ) -> Iterator[str]:
        """`generate`, in pieces as the text comes. Pieces have whole characters and no part of a stop string.

        `options` are those of `generate`. To stop early, close or drop the iterator.
        """
        return self._generator.stream(prompt, self._request(max_new_tokens, **options))

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

        The model's chat template renders them. A content may also be None, or a list of parts such as
        `{"type": "text", "text": "Hi"}`. `template_values` are further variables of the template, such as
        `{"enable_thinking": False}`. `options` are those of `generate`. `drop_oldest` drops the oldest turns
        if there is no room for an answer: see `fitting`. Raises ChatTemplateError, a ValueError, if there is
        no template or it rejects the messages, and ContextFull for messages longer than `context`.
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
        """`chat`, in pieces as the answer comes."""
        wanted = self._request(max_new_tokens, **options)
        if drop_oldest:
            messages = self.fitting(messages, max_new_tokens, template_values)
        tokens = self._conversation(messages, template_values)
        return self._generator.stream(tokens, wanted, "the conversation")

    def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = "auto",
        template_values: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """`chat`, with thoughts and tool calls apart from the text, and with `recommended_sampling` where
        `options` say nothing.

        `tools` and `tool_choice` are those of OpenAI's chat completions; calls are in the form that the
        model's template shows, and their arguments are enforced. `Answer.message()` goes on with the
        conversation. Raises what `chat` raises, and GrammarError, a ValueError, for tools that are invalid.
        """
        plan = self._answer_format.plan(
            messages, tools=tools, tool_choice=tool_choice, template_values=template_values
        )
        wanted = self._request(max_new_tokens, **{**self.recommended_sampling, **options})
        if plan.new_constraint and wanted.new_constraint:
            raise ValueError("answer: tools and a form of the text exclude each other, expected one of them")
        constraint = wanted.new_constraint or plan.new_constraint
        wanted = dataclasses.replace(wanted, new_constraint=constraint, shown_tokens=plan.shown_tokens)
        tokens = self.tokenizer.encode(plan.prompt, add_bos=False)
        reader, pieces = plan.new_reader(), self._generator.stream(tokens, wanted, "the conversation")
        return join([*map(reader.read, pieces), reader.read("", True)])

    @cached_property
    def _answer_format(self) -> AnswerFormat:
        from airllm.text.answers import AnswerFormat  # needs Jinja, which other methods do not

        return AnswerFormat(self.tokenizer, self._require_template(), self.grammars)

    def _request(self, max_new_tokens: int | None, **options: Any) -> Request:
        """The checked options of a call."""
        self._require_generation()
        form = {name: options.pop(name) for name in FORMS if options.get(name) is not None}
        options = {name: value for name, value in options.items() if name not in FORMS}
        wanted = request(max_new_tokens, **options)
        return dataclasses.replace(wanted, new_constraint=self.grammars.of_form(**form)) if form else wanted

    def fitting(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = 512,
        template_values: Mapping[str, Any] | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """The `messages` that leave room for an answer: all, or the system prompt and the newest turns.

        The room is `max_new_tokens`, at most a quarter of `context`. If turns must be dropped, an eighth of
        the context is freed beyond the room, so that the next questions share their beginning. The last turn
        always stays.
        """
        most = self.context - turns.room_for_answer(self.context, max_new_tokens)

        def tokens(some: Sequence[Mapping[str, Any]]) -> int:
            return len(self._conversation(some, template_values))

        return turns.drop_oldest_turns(messages, tokens, most, spare=self.context // 8)

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], template_values: Mapping[str, Any] | None
    ) -> list[int]:
        """The messages as tokens, by the chat template."""
        text = self._require_template().render(messages, **(template_values or {}))
        return self.tokenizer.encode(text, add_bos=False)

    def _require_template(self) -> ChatTemplate:
        self._require_generation()
        if self.chat_template is None:
            from airllm.text.chat_template import ChatTemplateError

            raise ChatTemplateError(f"{self.path} has no chat template: use generate")
        return self.chat_template

    def scheduler(self, limits: Limits = Limits()) -> Scheduler:  # noqa: B008  # frozen
        """A scheduler that serves many sequences, which come and go at any time. One thread may use it, and
        no other method of the engine that computes meanwhile.
        """
        return self._generator.scheduler(limits)

    def close(self) -> None:
        """Close the file and free its memory. Later use of the engine raises RuntimeError."""
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
