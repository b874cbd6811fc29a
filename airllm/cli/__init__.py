"""The command `airllm`."""
