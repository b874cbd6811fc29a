"""Opens the tokenizer of either kind of model."""

from __future__ import annotations

from os import PathLike

from airllm.files.gguf import GgufFile
from airllm.files.weight_file import model_path
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.tokenizer import Tokenizer


def open_tokenizer(path: str | PathLike[str], rows: int | None = None) -> Tokenizer:
    """The tokenizer of a GGUF file or a Hugging Face folder. `rows`: the model knows no more tokens; a folder
    may add some. Raises ModelFileError or OSError.
    """
    path = model_path(path)
    if path.is_dir():
        return folder_tokenizer(path, rows)
    with GgufFile(path) as file:
        return gguf_tokenizer(path, file.metadata)
