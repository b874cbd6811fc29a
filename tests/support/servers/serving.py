"""A server in a thread of the test, with a tiny model, on a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import speaking_model
import uvicorn

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.serving.app import App
from airllm.serving.options import Options
from airllm.serving.run import config_of

NAME = "tiny"
CONTEXT = 2048
KEY = "secret-key-of-a-test"


class Paced(Scheduler):
    """A scheduler whose steps take at least `pause` seconds, so that a test can act while a text grows."""

    pause = 0.0

    def step(self) -> Any:
        time.sleep(self.pause)
        return super().step()


class Server:
    """What tests need of a server that runs: its address, its engine, its service, and clients."""

    def __init__(self, address: str, app: App, scheduler: Paced, engine: LayerWiseInferenceEngine):
        self.address, self.service, self.scheduler, self.engine = address, app.service, scheduler, engine
        self._requests = app.requests

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client, which checks every answer against its types and repeats nothing."""
        given = {"api_key": KEY, "max_retries": 0, "timeout": 20, "_strict_response_validation": True}
        return openai.OpenAI(base_url=f"{self.address}/v1", **(given | options))

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=20, **options)

    def wait_until_idle(self, seconds: float = 5) -> None:
        """Wait until no sequence has a place and every request is counted and logged, or fail."""
        end = time.monotonic() + seconds
        while (load := self.service.thread.load).running or load.waiting or self._requests.running:
            assert time.monotonic() < end, f"after {seconds} s: {load}, {self._requests.running} requests"
            time.sleep(0.005)


def write_model(folder: Path) -> Path:
    return speaking_model.write(folder, max_position_embeddings=CONTEXT)


@contextlib.contextmanager
def serve(model: Path, limits: Limits | None = None, **options: Any) -> Iterator[Server]:
    """A server of the model until the end of the `with`. `options` are those of `Options`."""
    with (
        LayerWiseInferenceEngine(model, threads=1) as engine,
        socket.create_server(("127.0.0.1", 0)) as place,
    ):
        scheduler = Paced(engine._generator, limits or Limits())
        given = Options(**{"names": (NAME,), "ping": 0.2, "drain_timeout": 1} | options)
        app = App(engine, scheduler, given)
        server = uvicorn.Server(config_of(app, given))
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.002)
            yield Server(f"http://127.0.0.1:{place.getsockname()[1]}", app, scheduler, engine)
        finally:
            server.should_exit = True
            thread.join()
