"""Make tests/data/llama_cpp_tokens.json: the ids that llama.cpp gives for tests/data/hard_texts.json.

    pip install llama-cpp-python==0.3.36
    python -m tests.references.llama_cpp_tokens

Vocabularies: SmolLM2's under each pre-tokenizer's name, and the SentencePiece one of
tests/data/sentence_pieces.json in the variants of tests/support/models/tokenizer_files.py.
"""

import ctypes
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import llama_cpp

from tests.support.models import tokenizer_files


def ids(path: Path, texts: list[str]) -> Iterator[list[list[int]]]:
    """Of each text with and without control tokens, once where they are the same."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    for text in texts:
        special, plain = (tokenize(vocabulary, text.encode(), each) for each in (True, False))
        yield [special] if special == plain else [special, plain]
    llama_cpp.llama_model_free(model)


def tokenize(vocabulary: ctypes.c_void_p, text: bytes, special: bool) -> list[int]:
    """The ids without a bos token."""
    most = len(text) + 8
    tokens = (llama_cpp.llama_token * most)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), tokens, most, False, special)
    assert count >= 0
    return tokens[:count]


def main() -> None:
    texts, found = tokenizer_files.hard_texts(), {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in tokenizer_files.NAMES:
            path = tokenizer_files.write(name, Path(scratch) / "model.gguf")
            found[name] = list(ids(path, texts))
    origin = f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, llama_tokenize without bos"
    shared = tokenizer_files.shared(found).items()
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in shared)
    tokenizer_files.REFERENCE.write_text(f'{{"origin": {json.dumps(origin)}, "ids": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
