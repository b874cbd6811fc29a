"""The documentation site: it is built without a warning, links lead somewhere, and nothing is missing."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from browser import open_browser
from chat_page import wait
from environment import REQUIRED

import airllm
from airllm import tensor_ops

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = (
    *("README.md", "BACKEND_GUIDE.md", "BACKEND_CONFIG.md", "SERVER_GUIDE.md"),
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
    *("benchmarks/README.md", "benchmarks/results/README.md", "deploy/README.md"),
)
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
DESKTOP = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
WIDTH = (
    "return Math.max(...[...document.querySelectorAll('html, .content, article')].map((e) => e.scrollWidth))"
)
SCROLLED_TABLES = (
    "return [...document.querySelectorAll('.table-wrapper')].filter((e) => e.scrollWidth > e.clientWidth)"
    ".map((e) => e.innerText.slice(0, 60))"
)
COLOURS = ("color", "background-color")
COLOUR = "return getComputedStyle(document.body).getPropertyValue(arguments[0])"
NOT_IN_THE_SITE = {("README.md", "Tests"), ("README.md", "More")}  # of a clone


def extension(name):
    """A module of docs/_ext."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


guides, shapes = extension("guides"), extension("shapes")


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.anchors |= {found["id"]} if found.get("id") else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages, by their file. A warning of Sphinx is an error."""
    if importlib.util.find_spec("sphinx") is None:
        assert "sphinx" not in REQUIRED, "AIRLLM_TEST_REQUIRE names sphinx: it is missing"
        pytest.skip("no sphinx: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees")]
    done = subprocess.run(
        [*command, str(DOCS), str(folder / "html")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return {path.resolve(): Page(path) for path in (folder / "html").rglob("*.html")}


def test_every_link_and_anchor_of_the_site_exists(site):
    broken = []
    for path, page in site.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or target.startswith("//"):
                continue
            file = (path.parent / unquote(urlsplit(target).path)).resolve() if target else path
            if not file.is_file() or (anchor and file in site and unquote(anchor) not in site[file].anchors):
                broken.append(f"{path.name}: {link}")
    assert sum(len(page.links) for page in site.values()) > 1000 and not broken, broken


def test_links_to_other_sites_are_addresses(site):
    found = {
        link for page in site.values() for link in page.links if urlsplit(link).scheme not in ("", "data")
    }
    wrong = [
        link
        for link in found
        if urlsplit(link).scheme not in ("http", "https")
        or not re.fullmatch(r"[\w.-]+(:\d+)?", urlsplit(link).netloc)
    ]
    assert len(found) > 10 and not wrong


@pytest.fixture(scope="module")
def browser():
    driver = open_browser("--allow-file-access-from-files")
    yield driver
    driver.quit()


def test_no_page_is_wider_than_a_phone(site, browser):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    wide = {}
    for path in site:
        browser.get(path.as_uri())
        width = browser.execute_script(WIDTH)
        wide |= {path.name: width} if width > PHONE["width"] else {}
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert not wide


def test_no_table_is_wider_than_its_page_on_a_desktop(site, browser):
    """A table that scrolls there leaves its prose a column of one word."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESKTOP)
    scrolled = {}
    for path in site:
        browser.get(path.as_uri())
        tables = browser.execute_script(SCROLLED_TABLES)
        scrolled |= {path.name: tables} if tables else {}
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert not scrolled


def test_the_search_finds_an_op(site, browser):
    page = next(path for path in site if path.name == "search.html")
    browser.get(f"{page.as_uri()}?q=rms_norm")
    links = "return [...document.querySelectorAll('#search-results li a')].map((each) => each.href)"
    wait(
        lambda: any("#airllm.tensor_ops.rms_norm" in link for link in browser.execute_script(links)),
        "rms_norm",
    )


def test_text_is_readable_on_a_light_and_on_a_dark_page(site, browser):
    """Each colour of text differs from the page's by at least the contrast that WCAG 2 asks for: 4.5."""
    page = next(path for path in site if path.name == "performance.html")
    seen = set()
    for scheme in ("light", "dark"):
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        browser.get(page.as_uri())
        text, background = (luminance(browser.execute_script(COLOUR, name)) for name in COLOURS)
        darker, lighter = sorted((text, background))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, scheme
        seen.add(background > text)
    assert seen == {True, False}


def luminance(colour):
    """That of "rgb(1, 2, 3)" by WCAG 2: 0 for black, 1 for white."""
    parts = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_public_names_are_in_the_reference(site):
    anchors = set().union(*(page.anchors for page in site.values()))
    names = [f"airllm.tensor_ops.{name}" for name in tensor_ops.__all__]
    names += [
        f"{package}.{name}"
        for module, public in airllm._WHERE.items()
        for package in ["airllm.backends" if module == "airllm.backends" else "airllm"]
        for name in public
    ]
    assert not set(names) - anchors


def test_every_section_of_the_guides_is_in_the_site_once():
    expected = [
        (guide, heading)
        for guide in GUIDES
        for heading in guides.headings((ROOT / guide).read_text())[1:]
        if (guide, heading) not in NOT_IN_THE_SITE
    ]
    found = [
        (each.guide, heading)
        for each in guides.sections()
        for heading in [*([each.starts_with] if each.starts_with else []), *guides.headings(each.text)]
    ]
    beginnings = {(guide, guides.headings((ROOT / guide).read_text())[0]) for guide in GUIDES}
    assert sorted(set(found) - beginnings) == sorted(expected) and len(found) == len(set(found))


def test_pages_have_no_code_that_no_test_runs():
    for page in DOCS.rglob("*.md"):
        kinds = re.findall(r"^```([^\s`]+)", page.read_text(), re.M)
        assert {*kinds} <= {"python", "text", "{include}", "{eval-rst}", "{toctree}"}, page


def test_links_of_a_guide_are_rewritten_for_the_page_that_includes_it():
    known = {("README.md", ""): "start.md", ("SERVER_GUIDE.md", "limits"): "server.md#limits"}
    known |= {("SERVER_GUIDE.md", ""): "server.md"}
    text = (
        "[a](SERVER_GUIDE.md#limits) [b](LICENSE) [c](examples/) ![d](docs/images/speed.svg) [e](https://x.y)"
    )
    assert guides.rewrite(text, "README.md", "../", known) == (
        "[a](../server.md#limits) [b](../../LICENSE) c ![d](../images/speed.svg) [e](https://x.y)"
    )
    code = "```text\n[a](SERVER_GUIDE.md)\n```\n"
    assert guides.rewrite(code, "README.md", "", known) == code
    with pytest.raises(ValueError, match="README.md links SERVER_GUIDE.md#limit, and no page"):
        guides.rewrite("[a](SERVER_GUIDE.md#limit)", "README.md", "", known)


def test_the_reference_has_the_shapes_and_dtypes_of_the_declaration():
    lines = shapes.lines("attention")
    assert "* ``q`` ``(..., h, t, d)``: float32, float16, bfloat16 or float64" in lines
    assert "* ``k`` ``(..., g, s, d)``: floats of any dtype" in lines
    assert "* ``mask`` ``(..., h, t, s)``, optional: bool (True: keep) or floats to add" in lines
    assert "* ``sinks`` ``(h)``, optional: the dtype of ``q``, or float32" in lines
    assert "* result ``(..., h, t, e)``" in lines and "* where h a multiple of g" in lines
