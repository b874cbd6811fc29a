"""Models of several architectures, wide enough that threads share them and with room for long texts: random
weights, in formats of blocks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from airllm import tensor_ops
from airllm.formats import FORMATS
from tests.support.models import stored
from tests.support.models.tiny_gguf_keys import close_file, write_config, write_vocabulary
from tests.support.models.tiny_gguf_names import ARCHITECTURES
from tests.support.models.tiny_models import DATA, VOCABULARY

CONTEXT, WINDOW = 4096, 100
WIDTH, HEADS, KV_HEADS, HEAD_DIM, WIDE, EXPERTS = 256, 4, 2, 64, 512, 4
# The folder whose configuration is widened, and how many layers: with a window and without one.
MODELS = {"llama3": 2, "gemma3": 6, "gpt_oss": 2, "qwen3_moe": 2}


def write_wide(name: str, path: Path, kind: Kind = Kind.Q4_0) -> Path:
    """A GGUF file; `kind` is the format of its matrices."""
    config = json.loads((DATA / name / "config.json").read_text()) | {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": WIDE, "num_hidden_layers": MODELS[name],
        "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    if config.get("sliding_window"):
        config["sliding_window"] = WINDOW
    if "moe_intermediate_size" in config:
        config["moe_intermediate_size"] = WIDE
    if experts := "num_local_experts" in config:
        config |= {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    write_config(writer, config)
    write_vocabulary(writer)
    rng = np.random.default_rng(1)
    for each, shape in _shapes(name, config, experts).items():
        values = _values(rng, each, shape)
        stored = kind if len(shape) > 1 and "ffn_gate_inp" not in each and "bias" not in each else Kind.F32
        writer.add_tensor(each, _quantize(values, stored), raw_dtype=stored)
    return close_file(writer, path)


def _quantize(values: np.ndarray, kind: Kind) -> np.ndarray:
    """By gguf; by airllm if gguf cannot write the format; random blocks if neither can."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        flat = values.reshape(-1, values.shape[-1])
        if FORMATS[kind.name.lower()].pack:
            data = tensor_ops.quantize(flat, kind.name).data
        else:
            data = stored.blocks(kind.name.lower(), flat.shape, seed=flat.size).data
        return data.reshape(*values.shape[:-1], -1)


def _shapes(name: str, config: dict[str, Any], experts: bool) -> dict[str, tuple[int, ...]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if not config["tie_word_embeddings"]:
        found["output.weight"] = (VOCABULARY, WIDTH)
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,), "attn_q": (q, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH),
        "attn_output": (WIDTH, q),
    }  # fmt: skip
    middle = "post_attention_norm" if name == "gpt_oss" else "ffn_norm"
    stack, suffix = ((EXPERTS,), "_exps") if experts else ((), "")
    of_layer |= {middle: (WIDTH,)} | {f"ffn_{each}{suffix}": (*stack, WIDE, WIDTH) for each in ("gate", "up")}
    of_layer |= {f"ffn_down{suffix}": (*stack, WIDTH, WIDE)}
    if experts:
        of_layer |= {"ffn_gate_inp": (EXPERTS, WIDTH)}
    if name in ("gemma3", "qwen3_moe"):
        of_layer |= {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
    if name == "gemma3":
        of_layer |= {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
    for layer in range(MODELS[name]):
        found |= {f"blk.{layer}.{each}.weight": shape for each, shape in of_layer.items()}
        if name == "gpt_oss":
            biased = {each: shape[:-1] for each, shape in of_layer.items() if len(shape) > 1}
            found |= {f"blk.{layer}.{each}.bias": shape for each, shape in biased.items()}
            found |= {f"blk.{layer}.attn_sinks.weight": (HEADS,)}
    return found


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights that neither grow nor shrink what they multiply, much."""
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    spread = 0.1 if name.endswith("bias") or "sinks" in name else 1.5 / np.sqrt(shape[-1])
    return (spread * rng.standard_normal(shape)).astype(np.float32)
