"""Which tensor gets which format, for each name that a user may give: one format, or llama.cpp's mixes.

A mix such as q4_k_m has one format for most matrices and a larger one where rounding does more harm: the
output, and in some layers the values of attention and the last matrix of the feed-forward part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airllm.files.gguf_writer import FLOATS
from airllm.formats import FORMATS


@dataclass(frozen=True)
class Shape:
    """What the choice depends on: layers, experts of a layer, and query heads per key-value head."""

    layers: int
    experts: int
    queries_per_key: int

    @classmethod
    def of(cls, architecture: str, keys: Mapping[str, Any]) -> Shape:
        """The shape of a model by the keys of its GGUF file; of numbers per layer, the first."""

        def number(name: str, default: int) -> int:
            value = keys.get(f"{architecture}.{name}", default)
            return int(value[0] if isinstance(value, list) else value)

        heads = number("attention.head_count", 1)
        kv_heads = number("attention.head_count_kv", heads)
        return cls(number("block_count", 0), number("expert_count", 0), heads // max(kv_heads, 1))


_CONVOLUTIONS = ("conv.weight", "conv1d.weight")

When = Callable[[int, Shape], bool]  # (layer, shape) -> whether a rule holds


def _always(layer: int, shape: Shape) -> bool:
    return True


def _shared_keys(layer: int, shape: Shape) -> bool:
    return shape.queries_per_key >= 4


def _first(count: int) -> When:
    return lambda layer, shape: layer < count


def _first_part(of: int) -> When:
    return lambda layer, shape: layer < shape.layers // of


def _more_bits(layer: int, shape: Shape) -> bool:
    """The first and last eighth of the layers, and every third between them."""
    eighth = shape.layers // 8
    return layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2


def _eight_experts(layer: int, shape: Shape) -> bool:
    """As in Mixtral, where attention is a small part of the whole."""
    return shape.experts == 8


def _small_values(layer: int, shape: Shape) -> bool:
    """As in Llama 70B, whose attn_v is small."""
    return shape.layers == 80 and shape.queries_per_key > 1


Rule = tuple[str, When, str]


@dataclass(frozen=True)
class Mix:
    """`format`: of most matrices, a block or float format. `file_type`: llama.cpp's number of such a file.
    `output`: the format of the output matrix. `rules`: (start of a tensor's name in its layer, when, format);
    the first that holds counts.
    """

    format: str
    file_type: int
    output: str = "q6_k"
    rules: tuple[Rule, ...] = ()


_V, _OUT, _DOWN, _QKV = "attn_v.weight", "attn_output.weight", "ffn_down", "attn_qkv.weight"
_SMALL: Rule = (_V, _small_values, "q5_k")


def _with_8(output: str, *rules: Rule) -> tuple[Rule, ...]:
    """The rules, after those for models of 8 experts; `output` is their format of attention's output."""
    attention = ((_V, "q8_0"), ("attn_k.weight", "q8_0"), (_OUT, output))
    return (*((part, _eight_experts, into) for part, into in attention), *rules)


_IQ4_RULES = _with_8("q5_k", (_V, _shared_keys, "q5_k"), (_DOWN, _first_part(8), "q5_k"))
_MIXES = {
    "q2_k": Mix(
        "q2_k",
        10,
        rules=_with_8(
            "q5_k",
            _SMALL,
            (_V, _shared_keys, "q4_k"),
            (_V, _always, "q3_k"),
            (_DOWN, _always, "q3_k"),
            (_OUT, _always, "q3_k"),
        ),
    ),
    "q3_k_s": Mix("q3_k", 11, rules=_with_8("q5_k", _SMALL)),
    "q3_k_m": Mix(
        "q3_k",
        12,
        rules=_with_8(
            "q5_k",
            _SMALL,
            (_V, _first(2), "q5_k"),
            (_V, _always, "q4_k"),
            (_DOWN, _first_part(16), "q5_k"),
            (_DOWN, _always, "q4_k"),
            (_OUT, _always, "q4_k"),
            (_QKV, _always, "q4_k"),
        ),
    ),
    "q3_k_l": Mix(
        "q3_k",
        13,
        rules=_with_8(
            "q3_k",
            (_V, _always, "q5_k"),
            (_DOWN, _always, "q5_k"),
            (_OUT, _always, "q5_k"),
            (_QKV, _always, "q4_k"),
        ),
    ),
    "q4_k_s": Mix(
        "q4_k",
        14,
        rules=_with_8("q5_k", _SMALL, (_V, _first(4), "q5_k"), (_DOWN, _first_part(8), "q5_k")),
    ),
    "q4_k_m": Mix(
        "q4_k",
        15,
        rules=_with_8(
            "q5_k",
            (_V, _more_bits, "q6_k"),
            _SMALL,
            (_DOWN, _more_bits, "q6_k"),
            (_QKV, _always, "q5_k"),
        ),
    ),
    "q5_k_s": Mix("q5_k", 16, rules=_with_8("q5_k")),
    "q5_k_m": Mix(
        "q5_k",
        17,
        rules=_with_8("q5_k", (_V, _more_bits, "q6_k"), (_DOWN, _more_bits, "q6_k"), (_QKV, _always, "q6_k")),
    ),
    "q6_k": Mix("q6_k", 18, rules=_with_8("q6_k")),
    "iq4_nl": Mix("iq4_nl", 25, rules=_IQ4_RULES),
    "iq4_xs": Mix("iq4_xs", 30, rules=_IQ4_RULES),
    "mxfp4_moe": Mix(
        "q8_0",
        38,
        "q8_0",
        tuple((part, _always, "mxfp4") for part in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")),
    ),
}
_FLOATS = {
    "f32": Mix("float32", 0, "float32"),
    "f16": Mix("float16", 1, "float16"),
    "bf16": Mix("bfloat16", 32, "bfloat16"),
}
_PLAIN = {name: Mix(name, of.file_type, "q8_0") for name, of in FORMATS.items() if of.file_type is not None}
# Every name that a user may give. Those without an ending mean the middle mix, as in llama.cpp.
TARGETS = _FLOATS | _PLAIN | _MIXES | {name: _MIXES[f"{name}_m"] for name in ("q3_k", "q4_k", "q5_k")}
# Formats of blocks of 256 -> the format for rows that are a multiple of 32 only.
_FOR_SHORT_ROWS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "iq4_xs": "iq4_nl",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}


def stays_float32(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a GGUF file is never stored in less: vectors, routers, short convolutions, and the
    scales of recurrent states, whose names do not end in "weight". So it is in llama.cpp, which multiplies
    with float32 there.
    """
    small = len(shape) == 1 or not name.endswith(".weight")
    return small or "norm" in name or "ffn_gate_inp" in name or name.endswith(_CONVOLUTIONS)


def format_of_matrix(mix: Mix, name: str, row: int, shape: Shape, is_output: bool) -> str:
    """The format of a matrix with this GGUF name and `row` values in a row."""
    if mix.format in FLOATS:
        return mix.format
    if is_output:
        whole = row % FORMATS[mix.format].values == 0
        return _fit(mix.output if whole else "q8_0", row)
    return _fit(_wanted(mix, name, shape), row)


def _wanted(mix: Mix, name: str, shape: Shape) -> str:
    """The format by the rules, for rows of any length."""
    layer, _, part = name.removeprefix("blk.").partition(".")
    if not layer.isdecimal():
        return mix.format
    found = (into for start, when, into in mix.rules if part.startswith(start) and when(int(layer), shape))
    return next(found, mix.format)


def _fit(format: str, row: int) -> str:
    """The format, or another one if rows are no whole blocks."""
    if row % FORMATS[format].values:
        format = _FOR_SHORT_ROWS.get(format, "float16")
    return format if format in FLOATS or row % FORMATS[format].values == 0 else "float16"
