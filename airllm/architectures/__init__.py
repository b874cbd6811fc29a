"""The supported architectures. Each family is declared once, in a file of its name in `families/`.

`declaration.py` defines the terms of a declaration. `keys.py` and `tensor_names.py` have the names that files
use. `read_folder.py` and `read_gguf.py` make a `ModelConfig` from a declaration and a file.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

from airllm.architectures.families import all_architectures, table, types_of_folders
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.pooling import EMBEDDER
from airllm.architectures.read_folder import folder_config
from airllm.architectures.read_gguf import gguf_config
from airllm.architectures.tensor_names import NamedTensors
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
    if isinstance(weights, GgufFile):
        return gguf_config(weights)
    config, folder = folder_config(weights.path), Path(weights.path)
    if config.tied_embeddings or not (folder / EMBEDDER).is_file():
        return config
    if "output" in NamedTensors(weights, config):
        return config
    # sentence-transformers writes decoders without their output (Qwen3-Embedding-8B)
    return replace(config, tied_embeddings=True, lacks_output=True)
