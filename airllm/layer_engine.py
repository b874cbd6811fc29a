"""The engine by its public name: `airllm.engine.engine`."""

from airllm.engine.engine import LayerWiseInferenceEngine as LayerWiseInferenceEngine

__all__ = ["LayerWiseInferenceEngine"]
