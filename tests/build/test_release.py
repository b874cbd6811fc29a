"""What makes a release: which wheels, how they are published, the version, the changelog."""

import re
from fnmatch import fnmatch

import pytest
import yaml
from checkouts import ROOT

import airllm
from tests.compatibility import pythons
from tests.compatibility.environments import tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PLATFORMS = ("manylinux_x86_64", "manylinux_aarch64", "macosx_x86_64", "macosx_arm64", "win_amd64")


def test_the_pythons_are_those_from_the_oldest_that_is_required():
    numbers = [int(version.partition(".")[2]) for version in pythons.supported()]
    assert PROJECT["project"]["requires-python"] == f">=3.{numbers[0]}"
    assert len(numbers) >= 5 and numbers == [*range(numbers[0], numbers[-1] + 1)]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_release_has_a_wheel_for_each_python(platform):
    """By cibuildwheel's names; for musl, other interpreters and Pythons without a lock there is the sdist."""
    patterns = PROJECT["tool"]["cibuildwheel"]["build"].split()

    def built(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    for number in range(8, 20):
        assert built(f"cp3{number}-{platform}") == (f"3.{number}" in pythons.supported())
    assert not built(f"cp314t-{platform}") and not built(f"pp311-{platform}")
    assert not built("cp312-musllinux_x86_64") and not built("cp312-win32")


def test_what_is_published_was_checked_and_needs_no_password():
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    publish = jobs["publish"]
    assert {*publish["needs"]} == {*jobs} - {"publish"} and publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "github.ref_type == 'tag'" and publish["environment"]
    assert not [name for name, job in jobs.items() if "permissions" in job and name != "publish"]
    assert not any({"password", "user"} & {*step.get("with", {})} for step in publish["steps"])
    assert "secrets." not in WORKFLOW and "://" not in WORKFLOW
    for command in (PROJECT["tool"]["cibuildwheel"]["test-command"], WORKFLOW):
        assert "python " in command and "tests/smoke.py" in command


def test_the_version_stands_in_one_place():
    """setuptools and the workflow read it there."""
    assert PROJECT["project"]["dynamic"].count("version") == 1
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "airllm.__version__"}
    assert "airllm.__version__" in WORKFLOW
    files = [path for path in ROOT.glob("*.*") if path.suffix in (".py", ".toml", ".cfg")]
    assignment = re.compile(rf"version\s*=\s*['\"]{re.escape(airllm.__version__)}")
    assert not [path for path in files if assignment.search(path.read_text())]


KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_changelog_has_the_form_of_keep_a_changelog():
    """Newest first; what is not released yet on top; each version once and dated."""
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.M)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", each) for each in headings[1:]]
    assert all(released), headings
    versions = [tuple(map(int, each.groups())) for each in released]
    assert versions == sorted({*versions}, reverse=True)
    for section in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.M)
        assert kinds and {*kinds} <= KINDS and len({*kinds}) == len(kinds), kinds
