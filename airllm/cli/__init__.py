"""The command `airllm`."""

from airllm.cli.commands import main as main
