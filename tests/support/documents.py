"""The code blocks of the documentation."""

import re

import checkouts

# An example, the backend that it needs, and what the block after it says that it prints.
BLOCK = re.compile(r"(?:<!-- needs (\w+) -->\n)?```(\w+)\n(.*?)```", re.S)
PRINTED = re.compile(r"\s*(?:It prints:\s*)?```text\n(.*?)```", re.S)


def read(document):
    return (checkouts.ROOT / document).read_text()


def blocks(document, language):
    """(backend it needs, text) of each code block."""
    found = BLOCK.findall(read(document))
    return [(needs, text) for needs, name, text in found if name == language]


def examples(document):
    """(backend it needs, code, what it prints or "") of each block of Python."""
    text = read(document)
    for found in BLOCK.finditer(text):
        if found[2] == "python":
            printed = PRINTED.match(text, found.end())
            yield found[1], found[3], printed[1] if printed else ""
