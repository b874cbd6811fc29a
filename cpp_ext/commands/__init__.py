"""The commands of setup.py, one module each, and the probes and recipes they share."""


class CommandError(Exception):
    """What a command could not do, with the remedy: one message for the user, no traceback."""
