"""Tiny random models of every architecture, and what Hugging Face transformers computes with them.

tests/references/tiny_models.py makes them, and the logits, with transformers; `tests/data/tiny_models` keeps
them. tiny_gguf.py makes GGUF files of the folders.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  lets NumPy know bfloat16
import numpy as np
from safetensors import safe_open

from airllm.architectures import all_architectures
from airllm.architectures.declaration import Tiny

DATA = Path(__file__).parents[2] / "data" / "tiny_models"
LOGITS = DATA / "logits.npz"
VOCABULARY = 80
# Tokens of the texts; the second begins the first. Windows are shorter; beyond SHORT, longrope is long.
LENGTHS = (40, SHORT := 24, 3)
# name -> model_type, and the model, as the architectures declare them
DECLARED: dict[str, tuple[str, Tiny]] = {
    name: (tiny.model_type or each.model_types[0], tiny)
    for each in all_architectures()
    if not each.encoder
    for name, tiny in each.tiny.items()
}
FOLDERS = tuple(DECLARED)
# Folders that GGUF files can be made of. The others have windows or dense layers that those cannot say.
AS_GGUF = tuple(name for name, (_, tiny) in DECLARED.items() if tiny.gguf)
# Folders of these types store norm weights minus one.
NORMS_LESS_ONE = (
    "gemma", "gemma2", "gemma3_text", "qwen3_next", "qwen3_5", "qwen3_5_moe_text",
)  # fmt: skip
WHOLE_NORM = "linear_attn.norm.weight"  # but of these
K_MODEL = (
    "llama_k"  # only a GGUF file: its matrices are random blocks, in formats whose quantizer nobody has here
)
K_CONFIG = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip


def texts() -> list[list[int]]:
    """Random token ids: one text of each length."""
    ids = (random_bits("texts", LENGTHS[0] + LENGTHS[2]) % VOCABULARY).tolist()
    return [ids[: LENGTHS[0]], ids[:SHORT], ids[LENGTHS[0] :]]


def random_bits(name: str, count: int) -> np.ndarray:
    """Bytes that are the same everywhere: NumPy promises that of raw bits, not of its distributions."""
    words = np.random.PCG64(zlib.crc32(name.encode())).random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]


def reference(name: str, stored: str = "float") -> list[np.ndarray]:
    """Logits (tokens, VOCABULARY) of each text. `stored`: "float", or "blocks" of quantized values."""
    with np.load(LOGITS) as kept:
        return np.split(kept[f"{name}.{stored}"], np.cumsum(LENGTHS)[:-1])


def read_folder(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json, and all tensors as float32."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted((DATA / name).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            tensors |= {each: file.get_tensor(each).astype(np.float32) for each in file.keys()}  # noqa: SIM118
    return json.loads((DATA / name / "config.json").read_text()), tensors
