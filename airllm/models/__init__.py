"""Models as they lie on disk: weights, configuration, tokenizer and chat template, from a GGUF file or a
Hugging Face folder.
"""

from airllm.models.open_weights import open_weights
from airllm.models.weights import ModelFileError, Stored, WeightFile

__all__ = ["ModelFileError", "Stored", "WeightFile", "open_weights"]
