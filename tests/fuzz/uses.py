"""What is done with an input: what the library does with such a file, as far as it goes.

Each function prepares a folder, once for many inputs, and returns what uses one input. All of a file is used:
also what a reader decodes only when it is needed.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import seeds
from tests.support.models import speaking_model

Use = Callable[[Path], None]

CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    [
        {"role": "user", "content": "é" * 300},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "1"},
    ],
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
_TEXT = "Hello <s> ab wörld \U0001f600 </s> 123\n"


def gguf_file(folder: Path) -> Use:
    from airllm.files.gguf import GgufFile

    def use(path: Path) -> None:
        with GgufFile(path) as file:
            for key in file.metadata:
                file.metadata[key]
            for name in file.names():
                file.tensor(name), file.span(name)
        for step in (_tokenize, _render, _compute):
            step(path)

    return use


def safetensors_file(folder: Path) -> Use:
    from airllm.files.safetensors import SafetensorsFolder

    speaking_model.write(folder)

    def use(path: Path) -> None:
        with SafetensorsFolder(path.parent) as file:
            for name in file.names():
                file.tensor(name), file.span(name)
        _compute(path.parent)

    return use


def config_file(folder: Path) -> Use:
    """A config.json beside the weights of a model of its type."""
    return _beside_weights(folder, lambda values: seeds.FOLDERS.get(str(values["model_type"])))


def published_config_file(folder: Path) -> Use:
    """A config.json beside weights that were quantized by its method."""
    os.environ["AIRLLM_CACHE_DIR"] = str(folder / "cache")
    folders = seeds.published_folders()

    def find(values: dict[str, Any]) -> Path | None:
        return folders.get(values.get("quantization_config", {}).get("quant_method", "mlx"))

    return _beside_weights(folder, find)


def _beside_weights(folder: Path, find: Callable[[dict[str, Any]], Path | None]) -> Use:
    """What opens a folder with an input and the weights that `find` tells of the input."""

    def use(path: Path) -> None:
        beside = None
        with contextlib.suppress(Exception):
            beside = find(json.loads(path.read_bytes()))
        for weights in (beside or seeds.FOLDERS["llama"]).glob("*safetensors*"):
            (folder / weights.name).symlink_to(weights.resolve())
        try:
            _compute(folder)
        finally:
            for link in folder.glob("*safetensors*"):
                link.unlink()

    return use


def tokenizer_file(folder: Path) -> Use:
    def use(path: Path) -> None:
        _tokenize(folder)

    return use


def template_file(folder: Path) -> Use:
    def use(path: Path) -> None:
        _render(folder)

    return use


def backend_file(folder: Path) -> Use:
    from airllm.backends import config

    def use(path: Path) -> None:
        with_errors: list[Exception] = []
        for call in (config.read, lambda path: config.write(path, preferred_backend="cpp"), config.reset):
            try:
                call(path)
            except config.ConfigError as error:
                with_errors.append(error)
        config.read(path)  # `reset` has mended it
        if with_errors:
            raise with_errors[0]

    return use


def tuning_file(folder: Path) -> Use:
    from airllm.backends import registry, routing, tuning_file

    usual, order = registry.open_backend("cpp"), ("cpp", "python")

    def use(path: Path) -> None:
        table = routing.Table(tuning_file.read(path), usual, order, registry.open_backend)
        table.rows()
        for name, shapes in (("silu", [(1, 4)]), ("matmul", [(4, 4), (4, 4)])):
            table.kernels[name](*(np.ones(shape, np.float32) for shape in shapes))
            table.points(name)
            table.summary(name)
            table.explain(name, shapes, "float32")

    return use


def server_body(folder: Path) -> Use:
    """The first line of an input is the address that its rest is sent to."""
    import httpx

    from airllm.engine.engine import LayerWiseInferenceEngine
    from airllm.serving.app import build_app
    from airllm.serving.options import Options

    engine = LayerWiseInferenceEngine(speaking_model.write(folder), threads=1)
    app = build_app(engine, Options(names=("tiny",), request_timeout=20, page=False))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_start(app))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    def use(path: Path) -> None:
        line, _, body = path.read_bytes().partition(b"\n")
        address = "/" + line.decode("ascii", "replace").strip("/ ")
        headers = {"content-type": "application/json"}
        try:
            answer = loop.run_until_complete(client.post(address, content=body, headers=headers))
        except (httpx.InvalidURL, UnicodeEncodeError):  # the client does not send it
            return
        check_answer(answer.status_code, answer.text)

    return use


async def _start(app: Any) -> None:
    """The engine's thread reports to the loop that is running."""
    app.service.thread.start()


def check_answer(status: int, text: str) -> None:
    """AssertionError for an answer that is not OpenAI's, or that tells of a defect of the server."""
    assert status in (200, 400, 404, 405, 413), f"status {status}: {text[:300]}"
    assert '"code":"internal_error"' not in text, text[:300]
    if status != 200:
        assert json.loads(text)["error"]["message"], text[:300]


def _tokenize(path: Path) -> None:
    from airllm.text.open_tokenizer import open_tokenizer

    tokenizer = open_tokenizer(path)
    for special in (True, False):
        tokenizer.decode(tokenizer.encode(_TEXT, special), special)
    tokenizer.decode(range(min(len(tokenizer), 400)), True)


def _render(path: Path) -> None:
    from airllm.text.chat_template import ChatTemplateError, open_chat_template

    template = open_chat_template(path)
    if template is None:
        return
    refusals = []
    for messages in CONVERSATIONS:
        try:
            template.render(messages, tools=TOOLS)
        except ChatTemplateError as error:
            refusals.append(error)
    if template.traits.takes_tools and refusals:
        raise refusals[0]
    if refusals:
        raise refusals[-1]


def _compute(path: Path) -> None:
    """Some tokens, alone and several at once; also within a budget, whose checks are others."""
    from airllm.engine.engine import LayerWiseInferenceEngine

    for options in ({}, {"cache_dtype": "f32", "compute": "float32"}, {"max_memory": "64MB"}):
        with contextlib.ExitStack() as opened:
            engine = opened.enter_context(LayerWiseInferenceEngine(path, context=16, threads=1, **options))
            last = engine.config.vocabulary - 1
            engine.forward([0, last, min(1, last)])
            cache = engine.new_cache()
            for token in (0, last):
                engine.forward([token], cache)
            if path.is_file() and not options:
                engine.generate([0] * 3, 4, temperature=0.0)
