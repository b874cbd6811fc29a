"""Text as a loop of whole passes makes it, with nothing kept in between."""

from airllm.layer_engine import LayerWiseInferenceEngine


def by_hand(engine: LayerWiseInferenceEngine, tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens, each from a pass over the whole sequence."""
    for _ in range(count):
        tokens = [*tokens, int(engine.forward(tokens).argmax())]
    return tokens[-count:]
