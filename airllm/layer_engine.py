"""The public name of the engine's module, `airllm.engine.engine`."""

from airllm.engine.engine import LayerWiseInferenceEngine as LayerWiseInferenceEngine

__all__ = ["LayerWiseInferenceEngine"]
