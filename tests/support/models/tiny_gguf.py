"""The tiny models as GGUF files, as llama.cpp's converter would write them.

Beside it, tiny_gguf_names.py has the names, tiny_gguf_tensors.py the tensors, tiny_gguf_keys.py the keys.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from airllm.formats import FORMATS
from tests.support.models.stored import scales, with_scales
from tests.support.models.tiny_gguf_keys import close_file, write_config, write_vocabulary
from tests.support.models.tiny_gguf_names import architecture_of, text_part
from tests.support.models.tiny_gguf_tensors import convert
from tests.support.models.tiny_models import K_CONFIG, K_MODEL, VOCABULARY, random_bits, read_folder

_BLOCKS = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)
_K_BLOCKS = ("q4_k", "q6_k", "q5_k", "iq4_nl", "q3_k", "q2_k")
_IN_ONE = re.compile(r"attn_(qkv|gate)\.weight$")  # of what folders of Qwen3-Next have as one tensor


def write_gguf(
    name: str, path: Path, stored: str = "float", decoded: bool = False, joined: bool = False, **split: Any
) -> Path:
    """A folder as a GGUF file. Matrices are in float32; if `stored` is "blocks" they are in several block
    formats; if it is "mxfp4" all experts are. `decoded`: the values of those blocks, in float32. `joined`:
    as older converters wrote latent attention and the inputs of Qwen3-Next's delta rule. `split`: options of
    GGUFWriter that split it into parts, which have names of their own.
    """
    if name == K_MODEL:
        return write_k_model(path)
    config, tensors = read_folder(name)
    architecture = architecture_of(config)
    writer = gguf.GGUFWriter(path, architecture, **split)
    write_config(writer, text_part(config), joined)
    write_vocabulary(writer)
    for each, values in convert(config, tensors, joined):
        of = _IN_ONE.sub("ssm_in.weight", each) if architecture == "qwen3next" else each
        kind = _KINDS[stored](of, values.shape)
        _add_tensor(writer, each, gguf.quants.quantize(values, kind), kind, decoded)
    return close_file(writer, path)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: Kind, decoded: bool) -> None:
    if decoded:
        data, kind = gguf.quants.dequantize(data, kind), Kind.F32
    writer.add_tensor(name, data, raw_dtype=kind)


def block_kind(name: str, shape: tuple[int, ...]) -> Kind:
    """The format of a tensor: vectors, also those of all experts in one tensor, routers and short
    convolutions stay float32, as llama.cpp leaves them.
    """
    plain = name.endswith((".bias", "conv.weight", "conv1d.weight", "ssm_a", "ssm_d", "norm.weight"))
    plain = plain or "ffn_gate_inp" in name
    if len(shape) == 1 or plain:
        return Kind.F32
    return _BLOCKS[zlib.crc32(name.encode()) % len(_BLOCKS)]


def _kind_of_experts(name: str, shape: tuple[int, ...]) -> Kind:
    return Kind.MXFP4 if name.endswith("_exps.weight") else Kind.F32


_KINDS = {"float": lambda *_: Kind.F32, "blocks": block_kind, "mxfp4": _kind_of_experts}


# -------------------------------------------------------------------------------------- blocks of 256 values


def k_tensors(formats: tuple[str, ...] = _K_BLOCKS) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name in a GGUF file, format, and data: the matrices of K_MODEL, or of one in other formats."""
    shapes = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 256, "ffn_up": 256,
              "ffn_down": 256}  # fmt: skip
    names = {"token_embd.weight": VOCABULARY} | {f"blk.0.{name}.weight": n for name, n in shapes.items()}
    for i, (name, rows) in enumerate(names.items()):
        of = FORMATS[form := formats[i % len(formats)]]
        count = 256 // of.values
        data = random_bits(f"{K_MODEL}.{name}", rows * count * of.bytes).reshape(rows, count, of.bytes)
        ones = np.ones((rows, count, scales(form)))
        spread = gguf.quants.dequantize(
            with_scales(data, form, ones).reshape(rows, -1), Kind(of.ggml_type)
        ).std()
        yield name, form, with_scales(data, form, ones / 12 / spread).reshape(rows, -1)


def write_k_model(path: Path, formats: tuple[str, ...] = _K_BLOCKS, decoded: bool = False) -> Path:
    """A Llama whose matrices are random blocks of these formats by turns. `decoded`: as in write_gguf()."""
    writer = gguf.GGUFWriter(path, "llama")
    write_config(writer, {**K_CONFIG, "model_type": "llama"})
    write_vocabulary(writer)
    for name, form, data in k_tensors(formats):
        _add_tensor(writer, name, data, Kind(FORMATS[form].ggml_type), decoded)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(256, np.float32))
    return close_file(writer, path)
