"""What clients send. A field that is not here is refused, as OpenAI does; `None` means that it is absent.

Fields that change nothing here are accepted, because clients send them: `user`, `metadata`, `store` and
others. A field that would change the answer and is not supported is in `refused`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

MOST_STOPS, MOST_CHOICES, MOST_TOOLS, MOST_MESSAGES, MOST_BIASES = 16, 16, 128, 4096, 1024
MOST_TOP_LOGPROBS, MOST_PROMPTS = 20, 128

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = Annotated[list[Stop], Meta(max_length=MOST_STOPS)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)]
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
Biases = Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MOST_BIASES)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)]
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_MESSAGES)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """How tokens are chosen."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Seed | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """What chat/completions and completions have in common."""

    model: str | None = None
    n: Choices | None = None
    stop: Stop | Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Natural | None = None
    min_tokens: Natural | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    return_token_ids: bool | None = None
    timings: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    # What changes nothing here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    return_progress: bool | None = None

    # Fields that would change the answer -> values that ask for nothing.
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"return_progress": (False,)}

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: Messages
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    # What changes nothing here: a hint for speed, and the length of prose.
    prediction: dict[str, Any] | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationFields.refused,
        "modalities": (["text"],),
        "audio": (),
        "functions": ([],),
        "function_call": ("none",),
        "web_search_options": (),
    }


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: str | list[Any]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {**GenerationFields.refused, "suffix": ("",)}


class TextFormat(Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses"""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    text: TextFormat | None = None
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # What changes nothing here.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "truncation": ("disabled",),
    }


class EmbeddingsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings, with the fields that TEI and Ollama (`truncate`) and vLLM
    (`truncate_prompt_tokens`, -1 for as many as the model supports) add.
    """

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize, with the fields of vLLM (`prompt`, `messages`) or of llama.cpp (`content`)."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    tokens: list[Natural]
    model: str | None = None
