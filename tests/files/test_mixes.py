"""Which tensor of a mix gets which format. Expected is what files have that llama.cpp made."""

from collections import Counter

import pytest

from airllm.convert.mixes import TARGETS, Shape, format_of_matrix
from airllm.formats import FORMATS

_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
# Values in a row of each matrix of a layer.
GEMMA3_270M = dict.fromkeys((*_ATTENTION, "ffn_gate", "ffn_up"), 640) | {
    "attn_output": 1024,
    "ffn_down": 2048,
}
LLAMA_8B = dict.fromkeys((*_ATTENTION, "ffn_gate", "ffn_up"), 4096) | {"ffn_down": 14336}
MIXTRAL = dict.fromkeys((*_ATTENTION, "ffn_gate_exps", "ffn_up_exps"), 4096) | {"ffn_down_exps": 14336}


def formats(mix: str, layer: dict[str, int], shape: Shape, tied: bool = False) -> dict[str, str]:
    width = next(iter(layer.values()))
    rows = {f"blk.{i}.{name}.weight": row for i in range(shape.layers) for name, row in layer.items()}
    rows |= {"token_embd.weight": width} | ({} if tied else {"output.weight": width})
    output = "token_embd.weight" if tied else "output.weight"
    return {
        name: format_of_matrix(TARGETS[mix], name, row, shape, name == output) for name, row in rows.items()
    }


def test_gemma3_270m_as_q4_k_m():
    """Its rows of 640 values are no whole blocks of 256."""
    found = formats("q4_k_m", GEMMA3_270M, Shape(18, 0, 4), tied=True)
    assert Counter(found.values()) == {"q5_0": 81, "q4_k": 27, "q8_0": 10, "q6_k": 9}
    more = [i for i in range(18) if found[f"blk.{i}.ffn_down.weight"] == "q6_k"]
    assert more == [0, 1, 4, 7, 10, 13, 15, 16, 17]
    assert [i for i in range(18) if found[f"blk.{i}.attn_v.weight"] == "q8_0"] == more


@pytest.mark.parametrize(
    ("mix", "counts"),
    (
        ("q4_k_m", {"q4_k": 193, "q6_k": 33}),
        ("q5_k_m", {"q5_k": 193, "q6_k": 33}),
        ("q4_k_s", {"q4_k": 217, "q5_k": 8, "q6_k": 1}),
        ("q5_k_s", {"q5_k": 225, "q6_k": 1}),
        ("q6_k", {"q6_k": 226}),
        ("q3_k_s", {"q3_k": 225, "q6_k": 1}),
        ("q3_k_m", {"q3_k": 129, "q4_k": 92, "q5_k": 4, "q6_k": 1}),
        ("q3_k_l", {"q3_k": 129, "q5_k": 96, "q6_k": 1}),
        ("q2_k", {"q2_k": 129, "q3_k": 64, "q4_k": 32, "q6_k": 1}),
    ),
)
def test_llama_3_8b(mix, counts):
    """The numbers that llama.cpp prints for its 32 layers, with four query heads per key-value head."""
    assert Counter(formats(mix, LLAMA_8B, Shape(32, 0, 4)).values()) == counts


def test_eight_experts_keep_their_attention_in_more_bits():
    found = formats("q4_k_m", MIXTRAL, Shape(32, 8, 4))
    assert {found[f"blk.{i}.{name}.weight"] for i in range(32) for name in ("attn_k", "attn_v")} == {"q8_0"}
    assert {found[f"blk.{i}.attn_output.weight"] for i in range(32)} == {"q5_k"}
    assert [found[f"blk.{i}.ffn_down_exps.weight"] for i in (3, 4, 6, 28)] == ["q6_k", "q4_k", "q6_k", "q6_k"]
    others = formats("q4_k_m", MIXTRAL, Shape(32, 16, 4))
    assert others["blk.5.attn_k.weight"] == "q4_k"


def test_the_values_of_llama_70b_have_five_bits():
    found = formats("q4_k_m", LLAMA_8B, Shape(80, 0, 8))
    assert Counter(found[f"blk.{i}.attn_v.weight"] for i in range(80)) == {"q6_k": 40, "q5_k": 40}


def test_short_rows_get_blocks_of_32_or_floats():
    short = {"q2_k": "q4_0", "q3_k_s": "q4_0", "q4_k_s": "q5_0", "q5_k_s": "q5_1", "q6_k": "q8_0"}
    shape = Shape(8, 0, 1)
    for mix, into in short.items():
        assert format_of_matrix(TARGETS[mix], "blk.4.attn_q.weight", 96, shape, False) == into
        assert format_of_matrix(TARGETS[mix], "blk.4.attn_q.weight", 100, shape, False) == "float16"
        assert format_of_matrix(TARGETS[mix], "output.weight", 96, shape, True) == "q8_0"
        assert format_of_matrix(TARGETS[mix], "output.weight", 256, shape, True) == "q6_k"


def test_experts_as_mxfp4():
    found = formats("mxfp4_moe", MIXTRAL, Shape(4, 32, 8))
    assert Counter(found.values()) == {"mxfp4": 12, "q8_0": 18}


def test_a_mix_has_the_file_type_of_its_format():
    for name, of in FORMATS.items():
        if of.file_type is not None:
            assert TARGETS["mxfp4_moe" if name == "mxfp4" else name].file_type == of.file_type


def test_the_shape_by_the_keys():
    keys = {"x.block_count": 3, "x.attention.head_count": [8, 4], "x.attention.head_count_kv": 2}
    assert Shape.of("x", keys) == Shape(3, 0, 4)
    assert Shape.of("y", keys) == Shape(0, 0, 1)
