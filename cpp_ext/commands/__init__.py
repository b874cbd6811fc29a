"""The commands of setup.py, one module each, and the probes and recipes they share.

A command is a module with HELP, add_options(parser) and run(options). `command_line` runs it without
setuptools, or as a setuptools command.
"""


class CommandError(Exception):
    """A command failed. The message has the remedy; the user sees no traceback."""


class UsageError(CommandError):
    """Invalid options; the command did nothing."""
