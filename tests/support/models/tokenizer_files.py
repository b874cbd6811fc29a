"""Vocabularies for tests, as metadata and as GGUF files that hold nothing else, and texts that are hard."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from airllm.files import smollm2
from airllm.files.gguf import GgufFile
from airllm.text.vocabulary import Kind, bytes_of_letters

DATA = Path(__file__).parents[2] / "data"
REFERENCE = DATA / "llama_cpp_tokens.json"
PIECES = DATA / "pieces.json"

# SmolLM2's vocabulary under these pre-tokenizers ...
BYTE_PAIRS = (
    "smollm", "default", "gpt-2", "starcoder", "llama-bpe", "qwen2", "tekken", "deepseek-v3", "dbrx",
    "gpt-4o", "qwen35", "seed-coder", "deepseek-coder", "falcon", "viking",
    "deepseek-llm",
)  # fmt: skip
# ... and a SentencePiece vocabulary with these keys.
SENTENCE_PIECES: dict[str, dict[str, Any]] = {
    "sentence pieces": {},
    "sentence pieces, no prefix": {"tokenizer.ggml.add_space_prefix": False},
    "sentence pieces, phi-3": {"general.name": "Phi-3 tiny"},
}
# The pieces of that vocabulary, with merges, as files of Gemma 4 have them.
GEMMA4 = "gemma4"
NAMES = (*BYTE_PAIRS, *SENTENCE_PIECES, GEMMA4)


def write_tokenizer(folder: Path, tokens: int = 70) -> Path:
    """Add a tokenizer.json of so many tokens; a tiny model's vocabulary has 80."""
    words = [*(some := list(bytes_of_letters())[: tokens - 1]), some[0] + some[1]]
    ids = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=ids, merges=[(some[0], some[1])]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return folder


def hard_texts() -> list[str]:
    return json.loads((DATA / "hard_texts.json").read_text())


def reference() -> dict[str, list[Any]]:
    """llama.cpp's ids: by name, of each text with and, where they differ, without control tokens."""
    return _whole(json.loads(REFERENCE.read_text())["ids"])


def pieces() -> dict[str, list[list[int]]]:
    """Where the makers' tokenizers cut: by a pre-tokenizer's name, the ends of each text's pieces."""
    return _whole(json.loads(PIECES.read_text()))


def shared(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What files hold of it: where an earlier name has the same of a text, that name."""
    names = list(found)
    return {
        name: [next((old for old in names[:at] if found[old][i] == one), one) for i, one in enumerate(each)]
        for at, (name, each) in enumerate(found.items())
    }


def _whole(file: dict[str, list[Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, each in file.items():
        found[name] = [found[one][i] if isinstance(one, str) else one for i, one in enumerate(each)]
    return found


@cache
def _smollm() -> dict[str, Any]:
    with GgufFile(smollm2.fetch(timeout=240)) as file:
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
    if name == GEMMA4:
        return _gemma4(tokens, kinds, words["pieces"])
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


def _gemma4(tokens: list[str], kinds: list[int], pieces: list[str]) -> dict[str, Any]:
    """With runs of line ends as normal tokens, and kinds as converted files of Gemma 4 have them."""
    tokens[tokens.index("\n\n")] = "<|channel>"
    kinds[tokens.index("</s>")] = Kind.NORMAL  # a tag of HTML
    tokens += ["\n", "\n\n", "\n\n\n\n", "<|tool_response>", "<turn|>", "<eos>", '<|"|>']
    kinds += [*[Kind.NORMAL] * 3, Kind.USER_DEFINED, Kind.CONTROL, Kind.CONTROL, Kind.USER_DEFINED]
    known = {*pieces, "\n", "\n\n"}
    cuts = ((piece[:at], piece[at:]) for piece in [*pieces, "\n\n"] for at in range(1, len(piece)))
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in cuts if a in known and b in known],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": tokens.index("<eos>"),
        "tokenizer.ggml.add_bos_token": False,
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
