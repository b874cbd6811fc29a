"""Makes GGUF files: from folders, and in other formats."""
