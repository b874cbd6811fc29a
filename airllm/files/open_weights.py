"""Opens the weights of a model in either kind of file."""

from __future__ import annotations

from os import PathLike

from airllm.files.gguf import GgufFile
from airllm.files.safetensors import SafetensorsFolder
from airllm.files.weight_file import WeightFile, model_path


def open_weights(path: str | PathLike[str]) -> WeightFile:
    """The tensors of a GGUF file or of a Hugging Face folder. Raises ModelFileError or OSError."""
    path = model_path(path)
    return SafetensorsFolder(path) if path.is_dir() else GgufFile(path)
