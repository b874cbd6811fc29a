"""A long run of a server under bad clients. The test of the suite is short; the whole one is

    PYTHONPATH=.:tests/support/models:tests/support/servers python tests/serving/soak.py --requests 1000

A fifth of the clients leave; others send nonsense, read slowly, or send long prompts; most prompts share
their beginnings. At the end, every text was that of an engine that serves nobody, all places are free, and
the memory is what it was after the first half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import serving

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.scheduling.requests import Limits

BEGINNINGS = ("The fox and the hen. " * 20, "A list of rules: be kind. " * 12, "")
CLIENTS = 32
KINDS = ("whole", "stream", "leave", "slow", "nonsense", "long")
WEIGHTS = (30, 30, 20, 8, 8, 4)


def asked_for(rng: random.Random) -> dict[str, Any]:
    """A valid request. There are few of them, so that each text must be computed alone only once."""
    content = rng.choice(BEGINNINGS) + rng.choice(("And then?", "Why?", "Tell me more."))
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": rng.choice((3, 20, 60)),
        "temperature": rng.choice((0, 1)),
        "seed": rng.randrange(3),
    }


class Soak:
    """Sends requests of all kinds, and compares each text."""

    def __init__(self, server: serving.Server, alone: LayerWiseInferenceEngine, seed: int):
        self._server, self._alone, self._rng = server, alone, random.Random(seed)
        self._texts: dict[str, str] = {}
        self.done = Counter[str]()

    async def run(self, requests: int) -> None:
        limit = asyncio.Semaphore(CLIENTS)
        async with httpx.AsyncClient(base_url=self._server.address, timeout=60) as client:

            async def one(kind: str, asked: dict[str, Any]) -> None:
                async with limit:
                    self.done[await getattr(self, f"_{kind}")(client, asked)] += 1

            kinds = self._rng.choices(KINDS, WEIGHTS, k=requests)
            await asyncio.gather(*(one(kind, asked_for(self._rng)) for kind in kinds))

    def _expected(self, asked: dict[str, Any]) -> str:
        key = json.dumps(asked)
        if key not in self._texts:
            sampling = {name: asked[name] for name in ("temperature", "seed")}
            self._texts[key] = self._alone.chat(asked["messages"], asked["max_tokens"], **sampling)
        return self._texts[key]

    async def _whole(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
        answer = await client.post("/v1/chat/completions", json=asked)
        if answer.status_code == 429:
            return "queue full"
        text = answer.json()["choices"][0]["message"]["content"]
        assert text == self._expected(asked)
        return "whole"

    async def _stream(self, client: httpx.AsyncClient, asked: dict[str, Any], pause: float = 0) -> str:
        text = ""
        async with client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as answer:
            if answer.status_code == 429:
                return "queue full"
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                await asyncio.sleep(pause)
        assert text == self._expected(asked)
        return "slow" if pause else "stream"

    async def _slow(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
        return await self._stream(client, asked, pause=0.01)

    async def _leave(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
        asked = {**asked, "stream": self._rng.random() < 0.5, "max_tokens": 1000, "ignore_eos": True}
        post = client.post("/v1/chat/completions", json=asked)
        try:
            answer = await asyncio.wait_for(post, self._rng.uniform(0.01, 0.3))
        except asyncio.TimeoutError:
            return "left"
        return "queue full" if answer.status_code == 429 else "answered before it left"

    async def _nonsense(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
        body = self._rng.choice((b"{", b"[]", b'{"messages":3}', b"\xff" * 50, b'{"messages":[{}],"n":-1}'))
        answer = await client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, answer.text
        return "nonsense"

    async def _long(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
        size = self._rng.choice((1500, 1900, 5000))
        asked = {**asked, "messages": [{"role": "user", "content": "x" * size}], "max_tokens": 3}
        if size < serving.CONTEXT:
            return await self._whole(client, asked)
        answer = await client.post("/v1/chat/completions", json=asked)
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        return "too long"


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def soak(model: Path, requests: int, seed: int = 0) -> dict[str, Any]:
    """Run so many requests; what happened to them, and how much the memory grew in the second half."""
    limits = Limits(max_running=8, max_waiting=16, cache_bytes=64 << 20, prefix_bytes=16 << 20)
    start = time.monotonic()
    with (
        serving.serve(model, limits, write_timeout=5) as server,
        LayerWiseInferenceEngine(model, threads=1) as alone,
    ):
        soaking = Soak(server, alone, seed)
        asyncio.run(soaking.run(requests // 2))
        server.wait_until_idle()
        before = resident()
        asyncio.run(soaking.run(requests - requests // 2))
        server.wait_until_idle()
        load = server.service.thread.load
        assert not server.service.thread._streams, "streams were left over"
        assert load.cache_bytes <= load.most_cache_bytes
        assert load.prefix_bytes == load.cache_bytes, "an ended sequence has memory"
        assert load.counters.ended["error"] == 0
        grown = resident() - before
    return {
        **soaking.done,
        "grown_mib": round(grown / 2**20, 1),
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(soak(serving.write_model(Path(folder)), options.requests, options.seed))


if __name__ == "__main__":
    main()
