"""Make tests/data/llama_cpp_tokens.json: the ids that llama.cpp gives for tests/data/hard_texts.json.

    npm install --omit=optional --ignore-scripts node-llama-cpp @node-llama-cpp/linux-x64
    python -m tests.references.llama_cpp_tokens FOLDER_WITH_NODE_MODULES

Vocabularies: SmolLM2's under each pre-tokenizer's name, and the SentencePiece one of
tests/data/sentence_pieces.json in the variants of tests/support/tokenizer_files.py.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import tokenizer_files


def shorten(special: list[int], plain: list[int]) -> list[list[int]]:
    """Ids with and without control tokens, once where they are the same."""
    return [special] if special == plain else [special, plain]


def main(node_folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / f"{i}.gguf" for i, name in enumerate(tokenizer_files.NAMES)}
        for name, path in files.items():
            tokenizer_files.write(name, path)
        request = Path(scratch) / "request.json"
        texts = tokenizer_files.hard_texts()
        request.write_text(json.dumps({"files": {n: str(p) for n, p in files.items()}, "texts": texts}))
        script = shutil.copy(Path(__file__).with_suffix(".mjs"), node_folder)
        subprocess.run(["node", script, request, result := Path(scratch) / "result.json"], check=True)
        os.unlink(script)
        answer = json.loads(result.read_text())
    origin = f"llama.cpp {answer['llama_cpp']['release']} through node-llama-cpp, llama_tokenize without bos"
    ids = {name: [shorten(*both) for both in each] for name, each in answer["ids"].items()}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(each)}" for name, each in tokenizer_files.shared(ids).items()
    )
    tokenizer_files.REFERENCE.write_text(f'{{"origin": {json.dumps(origin)}, "ids": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
