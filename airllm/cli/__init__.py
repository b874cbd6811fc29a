"""The `airllm` command."""
