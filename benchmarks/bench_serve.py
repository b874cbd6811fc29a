"""`airllm serve` under load, beside llama.cpp's server: tokens per second, waits, first tokens.

    python benchmarks/bench_serve.py [--llama-server BINARY] [--model smollm2] [--rounds 3] [--tokens 256]

Each server is a process with the same file and the same number of threads. The clients are in this process
and read the streams with as little work as they can. Servers take turns. The first round of each does not
count.

- tokens/s: clients ask at the same time for texts of `--tokens` tokens; over the time until the last ends.
  They look for what has come 50 times a second, since they run on the server's cores.
- wait: the 99th percentile of times between events of four streams, while a prompt of 4096 tokens comes in.
- first token: of a prompt whose first 1000 tokens came before; the median.
- overhead: what the server lacks in tokens/s, at 8 clients, of a scheduler that a loop steps without HTTP, in
  turns with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.request import request
from airllm.engine.scheduling.requests import Limits, SequenceRequest
from airllm.files.hub import locate
from airllm.serving.sequences import EndsLater
from benchmarks import record

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, STREAMS = 8, 4
LONG, PREFIX = 4096, 1000
TOPICS = ("ferries", "clocks", "bridges", "bees", "storms", "maps", "violins", "glaciers")
START = 120  # seconds
PAUSE = 0.02  # seconds
DONE = b"data: [DONE]"


@dataclass
class Stream:
    """An answer that was read: when the request was sent, when events came, how many tokens there were."""

    start: float
    events: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def first(self) -> float:
        return self.events[0] - self.start

    def gaps(self, after: float, before: float) -> list[float]:
        times = [each for each in self.events if after <= each <= before]
        return [b - a for a, b in zip(times, times[1:], strict=False)]


def completion_request(prompt: str, tokens: int) -> bytes:
    """A request for a stream of so many tokens."""
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def read_stream(port: int, prompt: str, tokens: int, stream: Stream | None = None) -> Stream:
    """The answer to a completion, read by hand: a client library would take as long as the server."""
    found = stream or Stream(time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(completion_request(prompt, tokens))
    async for line in reader:
        if line.startswith(b"data: {"):
            found.events.append(time.perf_counter())
            last = line
        elif line.startswith(b"data: [DONE]"):
            break
        elif line.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
            raise SystemExit(f"bench_serve.py: {line!r} {await reader.read(2000)!r}")
    writer.close()
    found.tokens = json.loads(last[6:])["usage"]["completion_tokens"]
    return found


def prompts(count: int, turn: int) -> list[str]:
    """Prompts that share no beginning with each other or with those of other turns."""
    return [f"{turn * count + i}. A short story about {TOPICS[i]}. Once upon" for i in range(count)]


def measure_rate(port: int, clients: int, tokens: int, turn: int) -> float:
    """Tokens per second of all clients together. They read what has come every `PAUSE` seconds: a client that
    wakes for each event would take as much of the cores as the server's own work.
    """
    start = time.perf_counter()
    waiting = [send_request(port, prompt, tokens) for prompt in prompts(clients, turn)]
    texts = dict.fromkeys(waiting, b"")
    while waiting:
        time.sleep(PAUSE)
        for each in waiting:
            with contextlib.suppress(BlockingIOError):
                texts[each] += each.recv(1 << 20)
        waiting = [each for each in waiting if DONE not in texts[each]]
    seconds = time.perf_counter() - start
    for each in texts:
        each.close()
    return sum(tokens_of(text) for text in texts.values()) / seconds


def send_request(port: int, prompt: str, tokens: int) -> socket.socket:
    """A connection over which a stream will come, for reading without waiting."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(completion_request(prompt, tokens))
    connection.setblocking(False)
    return connection


def tokens_of(stream: bytes) -> int:
    """How many tokens a whole stream says that its text has."""
    last = stream[: stream.index(DONE)].rindex(b"data: {")
    return json.JSONDecoder().raw_decode(stream[last + 6 :].decode())[0]["usage"]["completion_tokens"]


async def measure_wait(port: int, text: str, turn: int) -> float:
    """The 99th percentile, in seconds, of the gaps in four streams while a long prompt comes in."""
    streams = [Stream(time.perf_counter()) for _ in range(STREAMS)]
    tasks = [
        asyncio.ensure_future(read_stream(port, prompt, 1500, stream))
        for prompt, stream in zip(prompts(STREAMS, 100 + turn), streams, strict=True)
    ]
    while any(len(stream.events) < 8 for stream in streams):
        await asyncio.sleep(0.01)
    begin = time.perf_counter()
    await read_stream(port, f"{turn}. {text}", 1)
    end = time.perf_counter()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gaps = sorted(gap for stream in streams for gap in stream.gaps(begin, end + 0.5))
    return gaps[min(len(gaps) - 1, round(0.99 * len(gaps)))]


async def measure_first(port: int, text: str, turn: int) -> float:
    """Seconds to the first token of a prompt whose beginning came before."""
    found = []
    for i in range(6):
        stream = await read_stream(port, f"{turn} {text}\nQuestion {i}:", 2)
        found.append(stream.first)
    return statistics.median(found[1:])


def text_of_tokens(path: Path, count: int) -> str:
    """A text of so many tokens."""
    words = " ".join(f"{TOPICS[i % 8]} and {i} more" for i in range(count))
    with LayerWiseInferenceEngine(path) as engine:
        return engine.tokenizer.decode(engine.tokenizer.encode(words)[:count])


def measure_scheduler(engine: LayerWiseInferenceEngine, tokens: int, turn: int) -> float:
    """Tokens per second of a scheduler that a loop steps, with the sequences that the clients ask for."""
    scheduler = engine.scheduler(Limits())
    for prompt in prompts(CLIENTS, turn):
        ends = EndsLater(engine.tokenizer, math.inf, None)
        scheduler.add(SequenceRequest(engine.tokenizer.encode(prompt), request(tokens), constraint=ends))
    start, count = time.perf_counter(), 0
    while not scheduler.is_idle:
        count += sum(len(event.tokens) for event in scheduler.step())
    return count / (time.perf_counter() - start)


# ------------------------------------------------------------------------------------------------ servers


def commands(path: Path, options: Any) -> dict[str, list[str]]:
    """The command of each server, without its port. llama.cpp's context is that of all its slots together."""
    found = {
        "airllm": [sys.executable, "-m", "airllm", "serve", str(path), "--threads", str(options.threads)]
    }
    if options.llama_server:
        slots = ["--parallel", str(CLIENTS), "--ctx-size", str(8192 * CLIENTS), "--no-webui"]
        found["llama.cpp"] = [options.llama_server, "-m", str(path), "-t", str(options.threads), *slots]
    return found


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[int]:
    """The port of a server that has begun to answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cpp_ext"), os.environ.get("PYTHONPATH", "")])
    log = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": paths}
    server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=environment)
    try:
        asyncio.run(_wait_for(port, server))
        yield port
    finally:
        server.terminate()
        server.wait()


async def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end and server.poll() is None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
            if b" 200 " in status:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit(f"bench_serve.py: {server.args!r} did not start")


def main() -> None:
    parser = record.parser_of(__doc__ or "")
    parser.add_argument("--model", nargs="+", default=["smollm2"], help="paths or names (default: smollm2)")
    parser.add_argument("--llama-server", metavar="BINARY", help="llama.cpp's server")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=256, help="of each text (default: %(default)s)")
    options = parser.parse_args()
    write(options, [measure_model(locate(name), options) for name in options.model])


def measure_model(path: Path, options: Any) -> dict[str, Any]:
    """The rounds of each server and of the scheduler alone, in turns."""
    texts = text_of_tokens(path, LONG), text_of_tokens(path, PREFIX)
    with contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(running(command)) for name, command in commands(path, options).items()
        }
        engine = stack.enter_context(LayerWiseInferenceEngine(path, threads=options.threads))
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
        without = []
        for turn in range(options.rounds + 1):
            for name, port in ports.items():
                rounds[name].append(one_round(port, options.tokens, texts, turn))
            without.append(measure_scheduler(engine, options.tokens, 10 + turn))
    counted = {name: found[1:] for name, found in rounds.items()}
    return {"model": path.stem, "rounds": counted, "scheduler": without[1:]}


def one_round(port: int, tokens: int, texts: tuple[str, str], turn: int) -> dict[str, float]:
    return {
        "one": measure_rate(port, 1, tokens, turn),
        "eight": measure_rate(port, CLIENTS, tokens, 10 + turn),
        "wait": asyncio.run(measure_wait(port, texts[0], turn)),
        "first": asyncio.run(measure_first(port, texts[1], turn)),
    }


def write(options: Any, models: list[dict[str, Any]]) -> None:
    titles = ["server", "1 client, tokens/s", "8 clients", "ratio", "p99 wait, ms", "first token, ms"]
    about = f"{options.threads} threads, {options.rounds} rounds, texts of {options.tokens} tokens."
    table = record.markdown(["model", *titles], [row for model in models for row in rows_of(model)])
    record.write("serve", about, table, {"models": models}, options.output)


def rows_of(model: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each server, and one for the scheduler without HTTP."""
    eight = {}
    for name, rounds in model["rounds"].items():
        found = {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
        eight[name] = found["eight"]
        rates = f"{found['one']:.0f}", f"{found['eight']:.0f}", f"{found['eight'] / found['one']:.2f}x"
        yield [model["model"], name, *rates, f"{found['wait'] * 1e3:.0f}", f"{found['first'] * 1e3:.0f}"]
    alone = statistics.median(model["scheduler"])
    overhead = f"overhead {1 - eight['airllm'] / alone:.1%}"
    yield [model["model"], "airllm, no HTTP", "", f"{alone:.0f}", overhead, "", ""]


if __name__ == "__main__":
    main()
