"""GGUF files of models: from folders, and in other formats."""
