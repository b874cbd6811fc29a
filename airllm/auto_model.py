"""The public name of AutoModel's module, `airllm.engine.auto_model`."""

from airllm.engine.auto_model import AutoModel as AutoModel

__all__ = ["AutoModel"]
