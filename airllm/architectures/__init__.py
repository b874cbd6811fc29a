"""The supported architectures. Each family is declared once, in a file of its name in `families/`.

`declaration.py` defines the terms of a declaration. `keys.py` and `tensor_names.py` have the names that files
use. `read_folder.py` and `read_gguf.py` make a `ModelConfig` from a declaration and a file.
"""

from __future__ import annotations

from os import PathLike

from airllm.architectures.families import all_architectures, table, types_of_folders
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.read_folder import folder_config
from airllm.architectures.read_gguf import gguf_config
from airllm.files.gguf import GgufFile
from airllm.files.open_weights import open_weights
from airllm.files.weight_file import WeightFile, model_path

__all__ = ["config_of", "all_architectures", "open_config", "table", "types_of_folders"]


def open_config(path: str | PathLike[str]) -> ModelConfig:
    """The configuration of a GGUF file or a Hugging Face folder. Raises ModelFileError or OSError."""
    path = model_path(path)
    if path.is_dir():
        return folder_config(path)
    with open_weights(path) as weights:
        return config_of(weights)


def config_of(weights: WeightFile) -> ModelConfig:
    """The configuration of opened weights. Raises ModelFileError."""
    return gguf_config(weights) if isinstance(weights, GgufFile) else folder_config(weights.path)
