"""The command `airllm`, mostly in this process: what it refuses, helps with and tells of."""

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from airllm import extras, progress
from airllm.architectures import types_of_folders
from airllm.bench import tune
from airllm.cli import argument_parser
from airllm.writable import refuse_unwritable
from tests.support.models.tiny_gguf import write_gguf

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("message", "expected"),
    (
        ("context has value -1", "--context has value -1"),
        ("the context of this engine (context=)", "the context of this engine (--context)"),
        ("rows=3 after context=4 are 7", "--rows=3 after --after=4 are 7"),
        ("a context has no say in max_memory", "a context has no say in max_memory"),
        ("the context is full of prompt text", "the context is full of prompt text"),
    ),
)
def test_parameters_in_messages_become_options(message, expected):
    options = argument_parser.parse_arguments(["profile", "m", "--context", "5"])
    also = {"context": "after"} if "rows" in message else {}
    assert argument_parser.in_options(message, options, **also) == expected


def test_models_that_are_none(tmp_path, capsys):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for model, message in (
        ("none.gguf", "no such file or folder"),
        ("broken.gguf", "broken.gguf: the version"),
    ):
        for command in (["generate", tmp_path / model, "a"], ["info", tmp_path / model]):
            assert run(*command) == 1
            assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", (["generate", "a"], ["chat"], ["quantize", "a"]))
def test_all_missing_packages_are_named_with_the_command_that_installs_them(
    folder, capsys, monkeypatch, command
):
    for package in extras.MODULES["models"]:
        for module in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "airllm.text.chat_template", raising=False)
    monkeypatch.chdir(ROOT)
    assert run(command[0], folder, *command[1:]) == 1
    names = ", ".join(extras.MODULES["models"])
    expected = f'this needs the packages {names}, which are not installed: pip install -e ".[models]"'
    assert capsys.readouterr().err == f"airllm: {expected}\n"


def test_a_gguf_file_is_quantized_without_the_packages_of_templates(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "airllm.text.chat_template", raising=False)
    monkeypatch.delitem(sys.modules, "airllm.convert.folder_to_gguf", raising=False)
    source = write_gguf("llama3", tmp_path / "a.gguf")
    assert run("quantize", source, tmp_path / "b.gguf", "--format=q8_0") == 0, capsys.readouterr().err


def test_a_missing_package_in_python(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "airllm.text.chat_template", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'the package jinja2, which is .*\[models\]"$'):
        engine.chat([{"role": "user", "content": "hi"}])


def test_the_extras_are_those_of_the_project(monkeypatch, tmp_path):
    text = (ROOT / "pyproject.toml").read_text()
    for extra, modules in extras.MODULES.items():
        (listed,) = re.findall(rf"^{extra} = \[(.*)\]$", text, re.M)
        names = re.findall(r'"([\w-]+)', listed)
        assert {name.replace("-", "_") for name in names} >= set(modules), extra
    monkeypatch.setattr(extras, "_CHECKOUT", tmp_path)
    assert extras.command("hub") == 'pip install "airllm-tensor-ops[hub]"'


def test_what_cannot_be_understood(capsys):
    for arguments in ([], ["none"], ["generate"], ["generate", "a", "b", "--top-k=x"]):
        with pytest.raises(SystemExit) as exit:
            run(*arguments)
        assert exit.value.code == 2
    assert "usage: airllm" in capsys.readouterr().err
    for arguments in (["chat", "a", "--none"], ["generate", "a", "b", "c"], ["profile", "a", "b"]):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert capsys.readouterr().err.startswith(f"usage: airllm {arguments[0]} ")


def test_without_a_command_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit, match="2"):
        run()
    out, err = capsys.readouterr()
    assert out == "" and "a model as a GGUF file in another format" in err
    assert any(line.split()[:3] == ["cpp-flags", "what", "a"] for line in err.splitlines())


def test_a_file_that_cannot_be_written_is_refused_first(folder, tmp_path, capsys, monkeypatch):
    assert run("quantize", folder, tmp_path / "none" / "new.gguf", "--format=f16") == 1
    assert f"new.gguf cannot be written: there is not a folder {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRLLM_TUNING", str(tmp_path / "file" / "tuning.json"))
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("was measured all the same"))
    assert run("tune", "--quick") == 1
    assert capsys.readouterr().err.endswith(f"cannot be written: {tmp_path / 'file'} is not a folder\n")


def test_a_folder_without_permission_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(PermissionError, match="no permission to write into"):
        refuse_unwritable(tmp_path / "new")


def test_what_the_system_refuses_has_the_files_name_and_no_number(folder, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "new.gguf"))

    monkeypatch.setattr("airllm.convert.quantize._write_file", full)
    assert run("quantize", folder, tmp_path / "new.gguf") == 1
    assert capsys.readouterr().err == f"airllm: {tmp_path / 'new.gguf'}: No space left on device\n"


def test_progress_without_a_terminal_is_a_line_once_it_begins(capsys):
    with progress.progress("Working") as advance:
        assert capsys.readouterr().err == ""
        for done in range(3):
            advance(done, 3)
    assert capsys.readouterr() == ("", "Working ...\n")


@pytest.mark.parametrize(
    "command", ("", "generate", "chat", "info", "models", "profile", "tune", "quantize", "cpp-flags")
)
def test_help_has_examples_that_can_be_understood_and_what_a_model_is(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        run(*filter(None, [command]), "--help")
    out = capsys.readouterr().out
    examples = re.findall(
        r"^  .*?airllm (.*)$", out.partition("examples:\n")[2].partition("\nMODEL:")[0], re.M
    )
    assert examples and all(len(line) < 80 for line in out.splitlines())
    for example in examples:
        words = shlex.split(example.replace("$(", "").replace(")", ""), comments=True)
        if "|" in words:
            words = words[: words.index("|")]
        if command != "cpp-flags":
            assert argument_parser.parse_arguments(words).command == (command or words[0])
    if command not in ("models", "tune", "cpp-flags"):
        assert "owner/repository:Q4_K_M" in out and "hf.co/" in out
        assert f"model types that run: {', '.join(types_of_folders())}"[:60] in out


def test_version(capsys):
    with pytest.raises(SystemExit) as exit:
        run("--version")
    assert exit.value.code == 0 and capsys.readouterr().out.startswith("airllm 0.")


def test_a_warning_is_one_plain_line():
    code = "import warnings; from airllm.cli import commands; from airllm.engine import info\n"
    code += "def lines(path):\n  for _ in 'ab': warnings.warn('airllm: measured\\nelsewhere')\n  return []\n"
    code += "info.lines, commands._path = lines, str; commands.main(['info', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "airllm: measured elsewhere\n" and done.stdout == ""
