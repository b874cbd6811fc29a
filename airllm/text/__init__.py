"""Text and tokens: tokenizers, chat templates, stop strings."""
