"""A process with one engine, which answers its parent: bench_engine.py, bench_long.py and others.

    python engine_worker.py SIDE FILE THREADS OPTIONS

SIDE is airllm, llama_cpp or ik_llama_cpp; the interpreter needs only that package. OPTIONS is JSON. Each line
of standard input is a request in JSON, each line of standard output its answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Airllm:
    """This project's engine; the option is `max_memory`."""

    def __init__(self, path: str, threads: int, options: dict[str, Any]):

        import tensor_ops_cpp
        from airllm import __version__
        from airllm.layer_engine import LayerWiseInferenceEngine

        tensor_ops_cpp.set_num_threads(threads)
        self.version = __version__
        self.engine = LayerWiseInferenceEngine(path, **options)
        self.cache, self.logits = self.engine.new_cache(), np.empty(0)

    def tokens(self, text: str) -> list[int]:
        return self.engine.tokenizer.encode(text)

    def restart(self) -> None:
        self.cache.truncate(0)

    def back(self, length: int) -> None:
        self.cache.truncate(length)

    def feed(self, tokens: list[int]) -> None:
        self.logits = self.engine.forward(tokens, self.cache)

    def start_sequences(self, prompts: list[list[int]]) -> None:
        self.caches = [self.engine.new_cache() for _ in prompts]
        self.feed_each(prompts)

    def feed_each(self, tokens: list[list[int]]) -> None:
        self.engine.forward(tokens, self.caches)

    def best(self) -> list[int]:
        return best_of(self.logits)


def check_sets(system_info: str, own_isa: str) -> None:
    """Raises if llama.cpp has AVX-512 where this project is kept from it: pip takes the wheel that it built
    for the machine in place of another build of the same version.
    """
    if own_isa and not own_isa.lower().startswith("avx512") and "AVX512 = 1" in system_info:
        raise RuntimeError(
            f"llama.cpp was built with AVX-512, and AIRLLM_CPU_ISA is {own_isa}: build it without, by pip "
            "with --no-cache-dir (benchmarks/README.md)"
        )


_CACHE_TYPES = {"f16": 1, "q8_0": 8}  # ggml's numbers


class LlamaCpp:
    """llama-cpp-python through its C interface. The options are `flash`, its fused attention, `context`,
    `cache_dtype`, which is f16 or q8_0, `gpu_layers`, the number of layers on its GPU, and `sequences`, that
    of sequences which share the context.
    """

    def __init__(self, path: str, threads: int, options: dict[str, Any]):
        import llama_cpp as c

        self.c, self.version = c, c.__version__
        self._silence = c.llama_log_callback(lambda *_: None)  # keep it alive: C calls it until the end
        c.llama_log_set(self._silence, None)
        c.llama_backend_init()
        check_sets(c.llama_print_system_info().decode(), os.environ.get("AIRLLM_CPU_ISA", ""))
        loading = c.llama_model_default_params()
        loading.n_gpu_layers = options.get("gpu_layers", 0)
        self.model = c.llama_model_load_from_file(path.encode(), loading)
        how = c.llama_context_default_params()
        how.n_ctx = how.n_batch = options.get("context", 1024)
        how.n_threads = how.n_threads_batch = threads
        how.n_seq_max = options.get("sequences", 1)
        how.type_k = how.type_v = _CACHE_TYPES[options.get("cache_dtype", "f16")]
        how.flash_attn_type = int(options.get("flash", False))
        self.context = c.llama_init_from_model(self.model, how)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot open {path}")
        self.vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))

    def tokens(self, text: str) -> list[int]:
        raw, room = text.encode(), (self.c.llama_token * (len(text) + 8))()
        vocabulary = self.c.llama_model_get_vocab(self.model)
        return room[: self.c.llama_tokenize(vocabulary, raw, len(raw), room, len(room), False, False)]

    def restart(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def back(self, length: int) -> None:
        self.c.llama_memory_seq_rm(self.c.llama_get_memory(self.context), 0, length, -1)

    def feed(self, tokens: list[int]) -> None:
        kept = (self.c.llama_token * len(tokens))(*tokens)
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(kept, len(tokens))):
            raise RuntimeError("llama_decode failed")
        self.logits = self.c.llama_get_logits_ith(self.context, -1)

    def start_sequences(self, prompts: list[list[int]]) -> None:
        self.restart()
        self.lengths = [0 for _ in prompts]
        self.feed_each(prompts)

    def feed_each(self, tokens: list[list[int]]) -> None:
        """The next tokens of each sequence, with logits after each one's last."""
        batch = self.c.llama_batch_init(sum(map(len, tokens)), 0, 1)
        for sequence, some in enumerate(tokens):
            for at, token in enumerate(some, self.lengths[sequence]):
                i = batch.n_tokens
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, at, 1
                batch.seq_id[i][0] = sequence
                batch.n_tokens += 1
            batch.logits[batch.n_tokens - 1] = True
            self.lengths[sequence] += len(some)
        failed = self.c.llama_decode(self.context, batch)
        self.c.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama_decode failed")

    def best(self) -> list[int]:
        return best_of(self.logits[: self.vocabulary])


class IkLlamaCpp:
    """ik-llama-cpp-python, likewise."""

    def __init__(self, path: str, threads: int, options: dict[str, Any]):
        import ik_llama_cpp
        from ik_llama_cpp import _ctypes_api, _internals

        self.c, self.parts, self.version = _ctypes_api, _internals, ik_llama_cpp.__version__
        self.model = _internals.IkModel(path)
        flash = bool(options.get("flash", False))
        self.context = _internals.IkContext(self.model, n_ctx=1024, n_threads=threads, flash_attn=flash)
        self.at = 0

    def tokens(self, text: str) -> list[int]:
        return self.model.tokenize(text, add_bos=False)

    def restart(self) -> None:
        self.context.kv_cache_clear()
        self.at = 0

    def feed(self, tokens: list[int]) -> None:
        batch = self.parts.make_batch_range(tokens, pos_start=self.at)
        failed = self.context.decode(batch)
        self.c.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama_decode failed")
        self.at += len(tokens)
        self.logits = self.context.get_logits(-1)

    def best(self) -> list[int]:
        return best_of(self.logits[: self.model.n_vocab])


SIDES: dict[str, Any] = {"airllm": Airllm, "llama_cpp": LlamaCpp, "ik_llama_cpp": IkLlamaCpp}


def best_of(logits: Any, count: int = 5) -> list[int]:
    return np.argsort(logits)[::-1][:count].tolist()


def time_feed(side: Any, after: list[int], tokens: list[int], one_by_one: bool) -> float:
    """Seconds that `tokens` take after the tokens of `after`; nothing is sampled."""
    side.restart()
    if after:
        side.feed(after)
    return _seconds(side, tokens, one_by_one)


def time_extend(side: Any, at: int, tokens: list[int], one_by_one: bool) -> float:
    """Seconds that `tokens` take after the first `at` tokens of the sequence, which are kept."""
    side.back(at)
    return _seconds(side, tokens, one_by_one)


def time_together(side: Any, prompts: list[list[int]], steps: int) -> float:
    """Seconds of `steps` passes, each with the next token of every sequence."""
    side.start_sequences(prompts)
    next_ones = [prompt[:1] for prompt in prompts]
    start = time.perf_counter()
    for _ in range(steps):
        side.feed_each(next_ones)
    return time.perf_counter() - start


def _seconds(side: Any, tokens: list[int], one_by_one: bool) -> float:
    start = time.perf_counter()
    for part in [[token] for token in tokens] if one_by_one else [tokens]:
        side.feed(part)
    return time.perf_counter() - start


def answer(side: Any, request: dict[str, Any]) -> Any:
    what = request.pop("do")
    if what == "feed":
        return time_feed(side, **request)
    if what == "extend":
        return time_extend(side, **request)
    if what == "together":
        return time_together(side, **request)
    if what == "best":
        return side.best()
    if what == "tokens":
        return side.tokens(**request)
    raise ValueError(f"request has do={what!r}, expected feed, extend, together, best or tokens")


def peak_resident_bytes() -> int:
    """Peak memory of this program only: `getrusage` starts with the parent's memory at process start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    name, path, threads, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # an engine's output must not mix with the answers
    side = SIDES[name](path, int(threads), json.loads(options))
    print(json.dumps({"version": side.version}), file=answers)
    for line in sys.stdin:
        reply = {"answer": answer(side, json.loads(line))}
        reply["peak"] = peak_resident_bytes()
        print(json.dumps(reply), file=answers)


if __name__ == "__main__":
    main()
