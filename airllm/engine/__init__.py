"""Text from a model: the engine, its generator, the model and its decoder layers."""
