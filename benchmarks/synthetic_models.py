"""Writes models of real shapes with random weights, as GGUF files, at the speed of the disk.

    python benchmarks/synthetic_models.py llama-3.2-1b q4_0 model.gguf
    python benchmarks/synthetic_models.py llama-3-70b q4_k_m model.gguf --layers 20
    python benchmarks/synthetic_models.py llama-3.1-8b f16 model.gguf --tokenizer other.gguf

A format is one that `airllm quantize` can write, also a mix of them. Weights are normal values of a size that
keeps activations bounded, so logits are finite, but the text has no meaning. Tensors repeat a random tile:
memory does not grow with the model, and a file system that compresses would store little of the file.

The vocabulary is bytes and unused tokens, or that of the file `--tokenizer`, filled up with unused tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ml_dtypes
import numpy as np

from airllm import tensor_ops
from airllm.convert.mixes import TARGETS, Mix, format_of_matrix, stays_float32
from airllm.convert.mixes import Shape as RuleShape
from airllm.files.gguf import GgufFile
from airllm.files.gguf_writer import (
    ARRAY,
    FLOAT32,
    FLOATS,
    INT32,
    STRING,
    UINT32,
    Key,
    PlannedTensor,
    in_pieces,
    nbytes_of,
    write_gguf,
)
from airllm.formats import FORMATS
from airllm.progress import OnProgress, unseen
from airllm.readable import size
from benchmarks.hybrid_models import Convolutions, DeltaRules
from benchmarks.synthetic_families import DeepSeek, Family, Gemma4, GptOss, Tensors, feed_forward


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama, of a Mixtral if it has `experts`, or of a `family` of models."""

    width: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int = 8192
    rope_base: float = 500_000.0
    tied: bool = False
    experts: int = 0
    experts_used: int = 0
    family: Family | None = None
    output_norm: str = "output_norm"

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def architecture(self) -> str:
        return self.family.architecture if self.family else "llama"


SHAPES = {
    "llama-3.2-1b": Shape(2048, 16, 8192, 32, 8, 128_256, context=131_072, tied=True),
    "llama-3.1-8b": Shape(4096, 32, 14_336, 32, 8, 128_256, context=131_072),
    "llama-3-70b": Shape(8192, 80, 28_672, 64, 8, 128_256),
    "mixtral-8x7b": Shape(
        4096, 32, 14_336, 32, 8, 32_000, context=32_768, rope_base=1e6, experts=8, experts_used=2
    ),
}

_LITE = DeepSeek(kv_rank=512, plain=128, rotated=64, value=128, expert_width=1408, shared_experts=2)
SHAPES |= {
    name: Shape(
        2048, 27, 10_944, 16, 1, 102_400, context=163_840, rope_base=1e4, experts=experts, experts_used=6,
        family=_LITE,
    )
    for name, experts in (("deepseek-v2-lite", 64), ("deepseek-v2-lite-16-experts", 16))
}  # fmt: skip

SHAPES["gpt-oss-20b"] = Shape(
    2880, 24, 2880, 64, 8, 201_088, context=131_072, rope_base=150_000.0, experts=32, experts_used=4,
    family=GptOss(head_dim=64, window=128),
)  # fmt: skip
SHAPES["gemma-4-e2b"] = Shape(
    1536, 35, 6144, 8, 1, 262_144, context=131_072, rope_base=1e6, tied=True,
    family=Gemma4(head_dim=256, full_head_dim=512, window=512, full_every=5, sharing=20, layer_input=256),
)  # fmt: skip
SHAPES["lfm2-1.2b"] = Shape(
    2048, 16, 8192, 32, 8, 65_536, context=128_000, rope_base=1e6, tied=True,
    family=Convolutions((2, 5, 8, 10, 12, 14), head_dim=64), output_norm="token_embd_norm",
)  # fmt: skip
SHAPES["qwen3.5-0.8b"] = Shape(
    1024, 24, 3584, 8, 2, 248_320, context=262_144, rope_base=1e7, tied=True,
    family=DeltaRules(head_dim=256, rotated=64, key_heads=16, value_heads=16, dim=128),
)  # fmt: skip

_TILE = 1 << 20  # values of a tile
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # GGUF's types of tokens


def write_model(
    path: Path,
    shape: Shape,
    format: str,
    tokenizer: Path | None = None,
    on_progress: OnProgress = unseen,
) -> Path:
    """Write a model of this shape in one of TARGETS; returns `path`.

    Raises ValueError if the tokenizer has too many tokens, OSError if the file cannot be written.
    """
    mix = TARGETS[format]
    tensors = [_plan(*each) for each in _tensors(shape, mix)]
    write_gguf(
        path, shape.architecture, [*_sizes(shape, mix), *_vocabulary(shape, tokenizer)], tensors, on_progress
    )
    return path


# ------------------------------------------------------------------------------------------------ metadata


def _sizes(s: Shape, mix: Mix) -> Iterator[Key]:
    numbers = {
        "block_count": s.layers,
        "context_length": s.context,
        "embedding_length": s.width,
        "feed_forward_length": s.feed_forward,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "rope.dimension_count": s.head_dim,
        "vocab_size": s.vocabulary,
    }
    if s.experts:
        numbers |= {"expert_count": s.experts, "expert_used_count": s.experts_used}
    fractions = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": s.rope_base}
    keys = [Key(name, number, UINT32) for name, number in numbers.items()]
    keys += [Key(name, fraction, FLOAT32) for name, fraction in fractions.items()]
    keys += s.family.keys(s) if s.family else []
    for key in {key.name: key for key in keys}.values():
        yield replace(key, name=f"{s.architecture}.{key.name}")
    yield Key("general.file_type", mix.file_type, UINT32)


def _vocabulary(s: Shape, tokenizer: Path | None) -> Iterator[Key]:
    """The keys of a tokenizer whose vocabulary has the shape's number of tokens."""
    if tokenizer is None:
        tokens, kinds = [*_byte_letters(), "ĠĠ", "<end>"], [*[_NORMAL] * 257, _CONTROL]
        others = list(_byte_level_keys(tokens.index("<end>")))
    else:
        tokens, kinds, others = _keys_of(tokenizer)
    missing = s.vocabulary - len(tokens)
    if missing < 0:
        raise ValueError(f"{tokenizer} has {len(tokens)} tokens, expected at most {s.vocabulary}")
    tokens, kinds = [*tokens, *(f"<unused_{i}>" for i in range(missing))], [*kinds, *[_UNUSED] * missing]
    yield Key("tokenizer.ggml.tokens", tokens, (*ARRAY, *STRING))
    yield Key("tokenizer.ggml.token_type", kinds, (*ARRAY, *INT32))
    yield from others


def _byte_letters() -> list[str]:
    """The letter of each byte in GPT-2's vocabulary: printable ones stand for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _byte_level_keys(end: int) -> Iterator[Key]:
    yield Key("tokenizer.ggml.model", "gpt2", STRING)
    yield Key("tokenizer.ggml.pre", "llama-bpe", STRING)
    yield Key("tokenizer.ggml.merges", ["Ġ Ġ"], (*ARRAY, *STRING))  # llama.cpp expects one
    yield Key("tokenizer.ggml.bos_token_id", end, UINT32)
    yield Key("tokenizer.ggml.eos_token_id", end, UINT32)


def _keys_of(tokenizer: Path) -> tuple[list[str], list[int], list[Key]]:
    """Tokens, their types, and the other keys of a file's tokenizer."""
    with GgufFile(tokenizer) as file:
        keys = {
            name: Key(name, file.metadata[name], file.metadata.types[name])
            for name in file.metadata
            if name.startswith("tokenizer.")
        }
    tokens, kinds = keys.pop("tokenizer.ggml.tokens").value, keys.pop("tokenizer.ggml.token_type").value
    return list(tokens), list(kinds), list(keys.values())


# ------------------------------------------------------------------------------------------------- tensors


def _tensors(s: Shape, mix: Mix) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and format of each tensor, in the order of the file."""
    rule = RuleShape(s.layers, s.experts, s.heads // s.kv_heads)
    output = "token_embd.weight" if s.tied else "output.weight"
    for name, shape in _shapes(s):
        if stays_float32(name, shape):
            yield name, shape, "float32"
        else:
            yield name, shape, format_of_matrix(mix, name, shape[-1], rule, name == output)


def _shapes(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (s.vocabulary, s.width)
    for name, shape in (s.family.shared(s) if s.family else {}).items():
        yield _whole_name(name), shape
    for i in range(s.layers):
        of_layer = s.family.layer(s, i) if s.family else _layer(s)
        yield from ((f"blk.{i}.{_whole_name(name)}", shape) for name, shape in of_layer.items())
    yield f"{s.output_norm}.weight", (s.width,)
    if not s.tied:
        yield "output.weight", (s.vocabulary, s.width)


def _whole_name(name: str) -> str:
    return name if name.endswith((".bias", "ssm_a")) else f"{name}.weight"


def _layer(s: Shape) -> Tensors:
    kv = s.kv_heads * s.head_dim
    experts, suffix = ((s.experts,), "_exps") if s.experts else ((), "")
    return {
        "attn_norm": (s.width,),
        "ffn_norm": (s.width,),
        **({"ffn_gate_inp": (s.experts, s.width)} if s.experts else {}),
        "attn_q": (s.width, s.width),
        "attn_k": (kv, s.width),
        "attn_v": (kv, s.width),
        "attn_output": (s.width, s.width),
        **feed_forward(suffix, experts, s.feed_forward, s.width),
    }


def _plan(name: str, shape: tuple[int, ...], format: str) -> PlannedTensor:
    kind = FORMATS[format].ggml_type if format in FORMATS else FLOATS[format]

    def pieces() -> Iterator[np.ndarray]:
        ones = np.full((1, *shape), -1 if name.endswith("ssm_a") else 1, np.float32)
        tile = ones if len(shape) == 1 else _tile(shape[-1], format)
        for part in in_pieces(prod(shape[:-1]), shape[-1], _TILE):
            yield tile[: part.stop - part.start]

    return PlannedTensor(name, shape, kind, nbytes_of(shape, format), pieces)


@cache
def _tile(columns: int, format: str) -> np.ndarray:
    """Rows of a matrix as stored: normal values, whose products with x are as large as x."""
    rows, rng = max(_TILE // columns, 1), np.random.default_rng(columns)
    values = rng.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
    if format in FORMATS:
        return tensor_ops.quantize(values, format).data
    return values.astype(ml_dtypes.bfloat16 if format == "bfloat16" else format)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("format", choices=TARGETS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, help="cut the shape to this many layers")
    parser.add_argument("--tokenizer", type=Path, help="a GGUF file whose vocabulary to copy")
    given = parser.parse_args()
    changes: dict[str, Any] = {"layers": given.layers} if given.layers else {}
    write_model(given.path, replace(SHAPES[given.shape], **changes), given.format, given.tokenizer)
    print(f"{given.path}: {size(given.path.stat().st_size)}")


if __name__ == "__main__":
    main()
