"""The commands of setup.py, one module each, and the probes and recipes they share.

A command is a module with HELP, add_options(parser) and run(options); `command_line` makes of it a program
that needs no setuptools, and a setuptools command.
"""


class CommandError(Exception):
    """What a command could not do, with the remedy: one message for the user, no traceback."""


class UsageError(CommandError):
    """Options that are wrong in themselves; nothing has been done."""
