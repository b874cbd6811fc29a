"""Vocabularies for tests, as metadata and as GGUF files that hold nothing else, and texts that are hard."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from airllm import real_data
from airllm.models.gguf_file import GgufFile
from airllm.models.vocabulary import Kind

DATA = Path(__file__).parent / "data"
REFERENCE = DATA / "llama_cpp_tokens.json"

# SmolLM2's vocabulary under these pre-tokenizers ...
BYTE_PAIRS = ("smollm", "default", "gpt-2", "starcoder", "llama-bpe", "qwen2", "tekken", "deepseek-v3")
# ... and a SentencePiece vocabulary with these keys.
SENTENCE_PIECES: dict[str, dict[str, Any]] = {
    "sentence pieces": {},
    "sentence pieces, no prefix": {"tokenizer.ggml.add_space_prefix": False},
    "sentence pieces, phi-3": {"general.name": "Phi-3 tiny"},
}
NAMES = (*BYTE_PAIRS, *SENTENCE_PIECES)


def hard_texts() -> list[str]:
    return json.loads((DATA / "hard_texts.json").read_text())


@cache
def _smollm() -> dict[str, Any]:
    with GgufFile(real_data.fetch(timeout=240)) as file:
        return {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.ggml.")}


def metadata(name: str) -> dict[str, Any]:
    """What a GGUF file of this tokenizer says. The byte pairs need the real model's file."""
    if name in BYTE_PAIRS:
        return {**_smollm(), "tokenizer.ggml.pre": name}
    words = json.loads((DATA / "sentence_pieces.json").read_text())
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * 256]
    scores = [0.0] * len(tokens)
    tokens += words["pieces"] + words["user_defined"] + words["control"]
    kinds += [Kind.NORMAL] * len(words["pieces"])
    kinds += [Kind.USER_DEFINED] * len(words["user_defined"]) + [Kind.CONTROL] * len(words["control"])
    scores += [-float(i) for i in range(len(tokens) - len(scores))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **SENTENCE_PIECES[name],
    }


def write(name: str, path: Path) -> Path:
    """A GGUF file with this vocabulary, and the least else that llama.cpp wants in one."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata(name).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}.get(type(value))
        if add:
            add(key, value)
        else:
            writer.add_array(key, value if isinstance(value, list) else value.tolist())
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
