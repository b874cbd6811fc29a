"""The command `airllm`, on a tiny model, mostly in this process."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airllm import cli, conversation, progress, tune
from airllm.backends import config, information
from airllm.output import refuse_unwritable
from tests import speaking_model

ROOT = Path(__file__).parents[1]
CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def typed(monkeypatch):
    """What comes from stdin."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def run(*arguments: str | Path) -> int:
    return cli.main([str(each) for each in arguments])


# ------------------------------------------------------------------------------------------------ generate


def test_generate_prints_the_text_and_nothing_else(folder, engine, capsys):
    assert run("generate", folder, "the thin", "-n", 9, "--raw") == 0
    out, err = capsys.readouterr()
    assert out == engine.generate("the thin", 9) + "\n"
    assert err.startswith("[9 tokens, ") and "ended by: length" in err and engine.backend.device() in err


def test_a_model_with_a_chat_template_is_asked_by_it(folder, engine, capsys, tmp_path):
    assert run("generate", folder, "hi", "-n", 9, "-q") == 0
    assert capsys.readouterr().out == engine.generate(CHAT, 9) + "\n"
    (speaking_model.write(tmp_path) / "tokenizer_config.json").unlink()
    assert run("generate", tmp_path, "hi", "-n", 9, "-q") == 0
    assert capsys.readouterr().out == engine.generate("hi", 9) + "\n"


def test_options_may_stand_anywhere(folder, engine, capsys):
    expected = engine.generate("the thin", 9) + "\n"
    for arguments in (["-q", folder, "the thin"], [folder, "-q", "the thin"], [folder, "the thin", "-q"]):
        assert run("generate", "--raw", "-n", 9, *arguments) == 0
        assert capsys.readouterr().out == expected
    for wrong in (["a", "b"], ["a", "--none"], ["--none"]):
        with pytest.raises(SystemExit, match="2"):
            run("generate", folder, "-q", *wrong)
        assert "unrecognized arguments: " in capsys.readouterr().err


def test_options_of_generate(folder, engine, capsys, typed):
    options = {
        "temperature": 1.2,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "seed": 4,
    }
    expected = engine.generate("he", 12, **options)
    stop = expected[6:8]
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    typed("he")
    assert run("generate", folder, "--raw", "-q", "-n", 12, "--stop", stop, "--context=40", *given) == 0
    assert capsys.readouterr() == (expected.split(stop)[0] + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (["--temperature=-1"], "temperature has value -1.0, expected a number from 0 on"),
        (["--context=4"], "prompt has 9 tokens, expected at most 4: the context of this engine"),
        (["--backend=none"], "none"),
        (["-n", "0"], "max_new_tokens has value 0"),
        (["--max-memory=10"], "max_memory"),
        (["--max-memory=much"], "max_memory has value 'much'"),
    ),
)
def test_errors_are_a_line(folder, capsys, arguments, message):
    assert run("generate", folder, "--raw", "t h e e r", *arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("airllm: ") and message in err and err.count("\n") == 1


def test_models_that_are_none(tmp_path, capsys):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for model, message in (
        ("none.gguf", "no such file or folder"),
        ("broken.gguf", "broken.gguf: the version"),
    ):
        for command in (["generate", tmp_path / model, "a"], ["info", tmp_path / model]):
            assert run(*command) == 1
            assert message in capsys.readouterr().err


def test_a_missing_package_is_named(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert run("generate", folder, "a") == 1
    assert "this needs the package tokenizers, which is not installed" in capsys.readouterr().err


def test_what_cannot_be_understood(capsys):
    for arguments in ([], ["none"], ["generate"], ["generate", "a", "b", "--top-k=x"]):
        with pytest.raises(SystemExit) as exit:
            run(*arguments)
        assert exit.value.code == 2
    assert "usage: airllm" in capsys.readouterr().err


def test_a_reader_that_has_enough_and_ctrl_c(folder):
    command = [sys.executable, "-m", "airllm", "generate", folder, "the", "-n", "100000", "--context=100000"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}"}
    for enough in (True, False):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout.read(4)
        if enough:
            process.stdout.close()
        else:
            process.send_signal(signal.SIGINT)
        error = process.stderr.read().decode()
        assert process.wait(60) == (141 if enough else 130)
        assert "Traceback" not in error and ("ended by: interrupted" in error) != enough
        process.stderr.close()


# ------------------------------------------------------------------------------------------------ chat


def test_chat_answers_to_what_was_said(folder, engine, capsys, typed):
    typed("hi\n\nhe\n/clear\nhi\n/exit\nnot read\n")
    assert run("chat", folder, "-n", 6, "--temperature=0", "-q", "--context=200") == 0
    first = engine.generate(CHAT, 6)
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": first}]
    engine.context = 200
    second = engine.chat([*said, {"role": "user", "content": "he"}], 6)
    assert capsys.readouterr() == (f"{first}\n{second}\n{first}\n", "")


def test_chat_with_a_system_prompt(folder, engine, capsys, typed):
    typed("hi")
    assert run("chat", folder, "-n", 6, "--temperature=0", "-q", "--system", "be") == 0
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert capsys.readouterr().out == engine.chat(messages, 6) + "\n"


def test_a_conversation_too_long_for_the_context_can_begin_again(folder, engine, capsys, typed):
    context = len(engine.tokenizer.encode(CHAT)) + 3
    typed("hi\nhe\n/clear\nhi\n")
    assert run("chat", folder, "--temperature=0", "-q", f"--context={context}") == 0
    out, err = capsys.readouterr()
    assert out == 2 * (engine.generate(CHAT, 4) + "\n")
    assert f"expected at most {context}: the context" in err and "(/clear begins again)" in err
    typed("hi")
    assert run("chat", folder, "--context=19") == 1


def test_ctrl_c_breaks_off_an_answer_and_keeps_what_was_said(engine, capsys, typed):
    asked = []

    def answer(messages):
        asked.append(messages)
        yield "so "
        raise KeyboardInterrupt

    typed("a\nb\n")
    conversation.converse(engine, None, answer, lambda: None)
    assert capsys.readouterr().out == "so \nso \n"
    assert [each["content"] for each in asked[1]] == ["a", "so ", "b"]


def test_chat_needs_a_template(tmp_path, capsys, typed):
    (speaking_model.write(tmp_path) / "tokenizer_config.json").unlink()
    typed("hi")
    assert run("chat", tmp_path) == 1
    assert "has no chat template: use generate" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ info


def test_info_of_this_machine(capsys):
    assert run("info") == 0
    out = capsys.readouterr().out
    assert "Active backend: " in out and "python     available: NumPy" in out


def test_info_of_a_model(folder, capsys):
    assert run("info", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    weights = speaking_model.weights().values()
    assert any("llama, 2 layers of width 64" in line for line in lines)
    assert any(line.startswith("Memory: ") and "with a context of 64" in line for line in lines)
    assert any("4 heads of 16, 2 for keys and values" in line for line in lines)
    assert any(re.match(rf" *float16 +{len(weights)} tensors, ", line) for line in lines)
    assert any(f"{sum(each.size for each in weights) / 1000:.1f} k in" in line for line in lines)


@pytest.mark.parametrize(
    ("file", "wish"),
    (
        ({"backend_priority": ["numpy", "cpp"]}, "the first that runs of python, cpp"),
        ({"preferred_backend": "python"}, "python; if it cannot run, the first of cuda, mlx, "),
        ({"force_backend": "python"}, "python and no other"),
    ),
)
def test_info_says_what_was_configured_and_where(file, wish, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(file))
    line = information._configured(config.read(path))
    assert line.startswith(wish) and line.endswith(f" ({path})") and "{" not in line


def test_without_a_command_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit, match="2"):
        run()
    out, err = capsys.readouterr()
    assert out == "" and "a model as a GGUF file in another format" in err
    assert any(line.split()[:3] == ["cpp-flags", "what", "a"] for line in err.splitlines())


def test_a_file_that_cannot_be_written_is_refused_first(folder, tmp_path, capsys, monkeypatch):
    assert run("quantize", folder, tmp_path / "none" / "new.gguf", "--format=f16") == 1
    assert f"new.gguf cannot be written: there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRLLM_TUNING", str(tmp_path / "file" / "tuning.json"))
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("was measured all the same"))
    assert run("tune", "--quick") == 1
    assert capsys.readouterr().err.endswith(f"cannot be written: {tmp_path / 'file'} is no folder\n")


def test_a_folder_without_permission_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(PermissionError, match="no permission to write into"):
        refuse_unwritable(tmp_path / "new")


def test_what_the_system_refuses_has_the_files_name_and_no_number(folder, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "new.gguf"))

    monkeypatch.setattr("airllm.models.quantize._written", full)
    assert run("quantize", folder, tmp_path / "new.gguf") == 1
    assert capsys.readouterr().err == f"airllm: {tmp_path / 'new.gguf'}: No space left on device\n"


# ------------------------------------------------------------------------------------------------ progress


def test_progress_without_a_terminal_is_a_line_once_it_begins(capsys):
    with progress.progress("Working") as advance:
        assert capsys.readouterr().err == ""
        for done in range(3):
            advance(done, 3)
    assert capsys.readouterr() == ("", "Working ...\n")


def test_version(capsys):
    with pytest.raises(SystemExit) as exit:
        run("--version")
    assert exit.value.code == 0 and capsys.readouterr().out.startswith("airllm 0.")


def test_a_warning_is_one_plain_line():
    code = "import warnings; from airllm import cli, model_info\n"
    code += "def lines(path):\n  for _ in 'ab': warnings.warn('airllm: measured\\nelsewhere')\n  return []\n"
    code += "model_info.lines, cli._path = lines, str; cli.main(['info', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "airllm: measured elsewhere\n" and done.stdout == ""


def test_info_tells_the_order_in_the_file_and_what_it_stands_for(tmp_path, monkeypatch, capsys):
    file = tmp_path / "backend.json"
    file.write_text("{}")
    monkeypatch.setenv("AIRLLM_CONFIG", str(file))
    settings = config.load_file()
    assert information._configured(settings) == (
        "the first that runs of cuda, mlx, opencl, webgpu, cpp, python; "
        f"cuda, opencl, cpp, python, as shipped, stands for all ({file})"
    )
    file.write_text('{"backend_priority": ["cpp", "python"]}')
    assert information._configured(config.load_file()) == f"the first that runs of cpp, python ({file})"
