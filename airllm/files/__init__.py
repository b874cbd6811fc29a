"""Model files: GGUF and safetensors, mapped and checked; downloads."""

from airllm.files.open_weights import open_weights
from airllm.files.weight_file import ModelFileError, Stored, WeightFile

__all__ = ["ModelFileError", "Stored", "WeightFile", "open_weights"]
