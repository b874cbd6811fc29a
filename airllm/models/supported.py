"""Which models run here: what the readers of configurations know."""

from __future__ import annotations

from airllm.models.folder_config import MODEL_TYPES


def model_types() -> list[str]:
    """`model_type` of config.json, of all that run. A GGUF file calls the same by its architecture: mistral
    and mixtral are llama there.
    """
    return [name for name in MODEL_TYPES if not name.endswith("_text")]
