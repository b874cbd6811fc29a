"""The command that checks each Python finds them by itself, and neither hides a failure nor a missing one."""

import sys
from pathlib import Path

import checkouts
import pytest

from tests.compatibility import __main__ as command
from tests.compatibility import environments, pythons
from tests.compatibility.environments import Failed


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return checkouts.script(path, text)


def test_a_python_is_found_on_path_or_with_pyenv(tmp_path, monkeypatch):
    """What cannot run, or is another version than its name says, is passed over."""
    shims = executable(tmp_path / "shims" / "python3.99", "exit 127").parent
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find("3.99") is None
    versions = tmp_path / "versions"
    executable(versions / "3.99.11" / "bin" / "python", "echo CPython 3.9")
    older, newer = (
        executable(versions / f"3.99.{patch}" / "bin" / "python", "echo CPython 3.99") for patch in (9, 10)
    )
    assert pythons.find("3.99") == newer and older.is_file()
    on_path = executable(tmp_path / "bin" / "python3.99", "echo CPython 3.99")
    monkeypatch.setenv("PATH", f"{shims}:{on_path.parent}")
    assert pythons.find("3.99") == on_path


def test_a_python_that_uv_installed_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    assert pythons.find("3.99") is None
    found = [
        executable(
            tmp_path / "uv" / f"cpython-3.99.{patch}-linux" / "bin" / "python3.99", "echo CPython 3.99"
        )
        for patch in ("9", "10", "11+freethreaded")
    ]
    assert pythons.find("3.99") == found[1]


def test_this_python_is_found_first():
    assert pythons.find("{}.{}".format(*sys.version_info)) == Path(sys.executable)


@pytest.mark.parametrize(("failing", "status"), (("oldest", 1), (None, 0)))
def test_failures_and_missing_pythons_are_said(failing, status, monkeypatch, capsys):
    def check(source, python, versions, backends, folder):
        yield "numpy==1"
        if versions == failing:
            raise Failed("smoke.py\nwrong by 3")

    first, *others = pythons.supported()
    monkeypatch.setattr(command, "check", check)
    monkeypatch.setattr(command, "unpack_sdist", lambda folder: folder)
    monkeypatch.setattr(pythons, "find", lambda version: Path("python") if version == first else None)
    monkeypatch.setattr(sys, "argv", ["compatibility"])
    assert command.main() == status
    said = capsys.readouterr().out
    for version in others:
        assert f"NOT CHECKED: Python {version} is not on this machine" in said
    assert ("wrong by 3" in said and f"FAILED: Python {first} with the oldest packages" in said) == bool(
        failing
    )
    assert said.endswith("1 passed, 1 failed\n" if failing else "2 passed, 0 failed\n")


def test_no_python_at_all_is_a_failure(monkeypatch):
    monkeypatch.setattr(command, "unpack_sdist", lambda folder: folder)
    monkeypatch.setattr(pythons, "find", lambda version: None)
    monkeypatch.setattr(sys, "argv", ["compatibility"])
    assert command.main() == 1


def test_a_command_that_does_not_end_has_failed():
    with pytest.raises(Failed, match="has not ended after 0.1 seconds"):
        environments.run(["sleep", "60"], seconds=0.1)
