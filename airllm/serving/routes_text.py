"""POST /tokenize and /detokenize"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from airllm.serving.protocol.answers import Detokenized, Tokenized
from airllm.serving.protocol.errors import invalid
from airllm.serving.protocol.requests import DetokenizeRequest, TokenizeRequest
from airllm.serving.service import Service, service_of
from airllm.serving.transport import Json
from airllm.text.tokenizer import Tokenizer


async def tokenize(request: Request) -> ASGIApp:
    service = service_of(request)
    asked = await service.read(request, TokenizeRequest)
    tokens = await service.prompts.call(partial(_encode, service, asked))
    found: list[Any] = tokens
    if asked.with_pieces:
        found = [{"id": token, "piece": _piece(service.tokenizer, token)} for token in tokens]
    return Json(Tokenized(len(tokens), service.engine.context, found))


def _encode(service: Service, asked: TokenizeRequest) -> list[int]:
    """The tokens, also of more text than the context has room for."""
    given = [n for n in ("prompt", "content", "messages") if getattr(asked, n) is not None]
    if len(given) != 1:
        raise invalid(f"Expected one of 'prompt', 'content' and 'messages', found {len(given)}.", "prompt")
    prompts = service.prompts
    if asked.messages is not None:
        add = asked.add_generation_prompt is not False
        values = asked.chat_template_kwargs
        plan = prompts.plan(asked.messages, values, add_generation_prompt=add, tools=asked.tools)
        return service.tokenizer.encode(plan.prompt, add_bos=False)
    bos = asked.add_special if asked.add_special_tokens is None else asked.add_special_tokens
    return prompts.encode(getattr(asked, given[0]), given[0], asked.parse_special is not False, bos)


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The text of a token; its bytes if they are no text alone, as llama.cpp's server does."""
    piece = tokenizer.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(request: Request) -> ASGIApp:
    service = service_of(request)
    asked = await service.read(request, DetokenizeRequest)
    return Json(await service.prompts.call(partial(_decode, service, asked)))


def _decode(service: Service, asked: DetokenizeRequest) -> Detokenized:
    most = len(service.tokenizer) - 1
    for i, token in enumerate(asked.tokens):
        if token > most:
            raise invalid(f"'tokens[{i}]' is {token}, expected a token from 0 to {most}.", f"tokens[{i}]")
    text = service.tokenizer.decode(asked.tokens, special=True)
    return Detokenized(text, text)
