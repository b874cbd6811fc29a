"""The command `airllm` in this process."""

from pathlib import Path

from airllm.cli import commands

CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def run(*arguments: str | Path) -> int:
    return commands.main([str(each) for each in arguments])
