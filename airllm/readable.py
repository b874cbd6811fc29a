"""Formats numbers for people."""


def size(number: int) -> str:
    """Bytes in powers of 1000, as for files: "98.4 MB"."""
    return _scale_number(number, ("bytes", "kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """A number in powers of 1000: "134.5 M"."""
    return _scale_number(number, ("", "k", "M", "G", "T")).strip()


def _scale_number(number: float, units: tuple[str, ...]) -> str:
    at = 0
    while number >= 999.5 and at < len(units) - 1:
        number, at = number / 1000, at + 1
    return f"{number:.{1 if at else 0}f} {units[at]}"
