"""Rewrites the links of the guides, which lie in the top folder, for the pages that include them.

A page includes a guide, or some of its sections:

    ```{include} ../BACKEND_GUIDE.md
    :start-after: "## From C++"
    :end-before: "## What this machine has"
    ```

A link of a guide to a heading goes to the page that has this section. A link to another file of the
repository becomes a download; one to a folder, or to a page that is not in the site, becomes plain text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n(.*?)^```$", re.M | re.S)
_OPTION = re.compile(r'^:([\w-]+): "?(.*?)"?$', re.M)
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.M)


@dataclass(frozen=True)
class Section:
    """A part of a guide that a page includes."""

    page: str  # of docs/, such as "cpp.md"
    guide: str  # of the top folder, such as "BACKEND_GUIDE.md"
    text: str
    starts_with: str = ""  # the heading that the page's own title replaces


def sections() -> list[Section]:
    """The sections that the pages include, in the order of the pages' names."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        for name, options in _INCLUDE.findall(path.read_text()):
            guide = (path.parent / name).resolve()
            found.append(_section(path, guide, dict(_OPTION.findall(options))))
    return found


def _section(path: Path, guide: Path, options: dict[str, str]) -> Section:
    text = guide.read_text()
    start, end = options.get("start-after", ""), options.get("end-before", "")
    for edge in (start, end):
        if f"\n{edge}\n" not in f"\n{text}":
            raise ValueError(f"{path.name}: {guide.name} has no line {edge!r}, expected one of its headings")
    text = text.partition(start)[2] if start else text
    text = text.partition(end)[0] if end else text
    replaced = start.lstrip("# ")
    return Section(path.relative_to(DOCS).as_posix(), guide.relative_to(ROOT).as_posix(), text, replaced)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def headings(text: str) -> list[str]:
    """The headings of a Markdown text, without those that are code."""
    return _HEADING.findall(_FENCE.sub("", text))


def places() -> dict[tuple[str, str], str]:
    """(guide, anchor) -> where it is in the site: "page.md#anchor". The anchor "" is a guide's beginning."""
    found: dict[tuple[str, str], str] = {}
    for each in sections():
        if each.starts_with:
            own = slug(each.starts_with) in map(slug, headings((DOCS / each.page).read_text())[1:])
            found[each.guide, slug(each.starts_with)] = (
                f"{each.page}#{slug(each.starts_with)}" if own else each.page
            )
        for heading in headings(each.text):
            found[each.guide, slug(heading)] = f"{each.page}#{slug(heading)}"
    for each in sections():
        first = headings((ROOT / each.guide).read_text())[0]
        if not each.starts_with or each.starts_with == first:
            found[each.guide, ""] = each.page
    return found


def rewrite(text: str, guide: str, to_top: str, known: dict[tuple[str, str], str]) -> str:
    """The text of a guide with links that are right in a page; `to_top` is the page's way to docs/."""

    def changed(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if re.match(r"\w+:", target):
            return link[0]
        path, _, anchor = target.partition("#")
        file = (ROOT / guide).parent.joinpath(path).resolve() if path else ROOT / guide
        name = file.relative_to(ROOT).as_posix()
        if file.is_dir() and (file / "README.md").exists():
            name += "/README.md"
        if image or name.startswith("docs/"):
            return f"{image}[{label}]({to_top}{name.removeprefix('docs/')})"
        if (name, "") in known:
            if (name, anchor) not in known:
                raise ValueError(f"{guide} links {target}, and no page of docs/ has this heading")
            return f"[{label}]({to_top}{known[name, anchor]})"
        is_page = name.endswith(".md") or file.is_dir()
        return label if is_page else f"[{label}]({to_top}../{name})"

    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [_LINK.sub(changed, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(changed, text[end:])])


def _include_read(app: Any, path: Path, page: str, content: list[str]) -> None:
    guide = (DOCS / path).resolve().relative_to(ROOT).as_posix()
    to_top = "../" * app.env.docname.count("/")
    content[0] = rewrite(content[0], guide, to_top, places())


def mark_test_names(app: Any, doctree: Any) -> None:
    """Give the names of tests (tests/FILE.py::TEST) a class: site.css lets them break anywhere."""
    for node in doctree.findall(lambda node: node.tagname == "literal"):
        if "::" in node.astext():
            node["classes"].append("test-name")


def setup(app: Any) -> dict[str, bool]:
    app.connect("include-read", _include_read)
    app.connect("doctree-read", mark_test_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
