"""The command `airllm`, on a tiny model, mostly in this process."""

import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airllm import extras, progress
from airllm.architectures import types_of_folders
from airllm.backends import config, describe
from airllm.bench import tune
from airllm.cli import (
    argument_parser,
    chat,
    commands,
    terminal,
)
from airllm.cli import stdin_prompt as piped_text
from airllm.cli.answer_printer import detail_lines, summary_line
from airllm.cli.stdin_prompt import with_stdin
from airllm.engine.request import Statistics
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.writable import refuse_unwritable
from tests.support import speaking_model
from tests.support.tiny_gguf import write_gguf

ROOT = Path(__file__).parents[2]
CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def typed(monkeypatch):
    """What comes from stdin."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def run(*arguments: str | Path) -> int:
    return commands.main([str(each) for each in arguments])


# ------------------------------------------------------------------------------------------------ generate


def test_generate_prints_the_text_and_nothing_else(folder, engine, capsys):
    assert run("generate", folder, "the thin", "-n", 9, "--raw") == 0
    out, err = capsys.readouterr()
    assert out == engine.generate("the thin", 9) + "\n"
    line = r"\[9 tokens, (\d of them drafted, )?[\d.]+ tokens/s; context 1\d of 64; ended by: length\]\n"
    assert re.fullmatch(line, err)


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
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "seed": 4,
    }
    expected = engine.generate("he", 12, **options)
    stop = expected[6:8]
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    typed("he")
    assert run("generate", folder, "--raw", "-q", "-n", 12, "--stop", stop, "--context=40", *given) == 0
    assert capsys.readouterr() == (expected.split(stop)[0] + "\n", "")


def test_the_form_of_the_text(folder, capsys, tmp_path):
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["café"]}')
    for given in (schema, schema.read_text()):
        assert run("generate", folder, "-q", "--json-schema", given, "hi") == 0
        assert capsys.readouterr() == ('"café"\n', "")
    assert run("generate", folder, "-q", "--choice=yes", "--choice=no", "hi") == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")
    assert run("generate", folder, "-q", "--regex=[0-9]{3}", "hi") == 0
    assert re.fullmatch("[0-9]{3}\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (['--json-schema={"not": {}}'], "--json-schema has an unsupported keyword at /not: a grammar cannot"),
        (["--json-schema={"], "--json-schema has an invalid schema: expected JSON"),
        (["--json-schema=none.json"], "none.json: No such file or directory"),
        (["--regex=(?=a)"], "--regex has an unsupported pattern: found a look-around"),
        (["--choice="], "--choice has an invalid value: found [''], expected texts to choose from"),
    ),
)
def test_errors_of_the_form_are_a_line(folder, capsys, arguments, message):
    pytest.importorskip("llguidance")
    test_errors_are_a_line(folder, capsys, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (["--temperature=-1"], "temperature has value -1.0, expected a number from 0 on"),
        (["--context=4"], "prompt has 9 tokens, expected at most 4: the context of this engine"),
        (["--backend=none"], "none"),
        (["-n", "0"], "-n has value 0, expected 1 or more"),
        (["-n0"], "-n has value 0, expected 1 or more"),
        (["--max-new-tokens=0"], "--max-new-tokens has value 0, expected 1 or more"),
        (["--max-memory=10"], "--max-memory is 10 bytes, expected at least"),
        (["--max-memory=much"], "--max-memory has value 'much'"),
        (["--top-k=-1"], "--top-k has value -1"),
        (["--top-p=0"], "--top-p has value 0.0"),
        (["--min-p=2"], "--min-p has value 2.0"),
        (["--repetition-penalty=0"], "--repetition-penalty has value 0.0"),
        (["--presence-penalty=3"], "--presence-penalty has value 3.0, expected a number from -2 to 2"),
        (["--frequency-penalty=-3"], "--frequency-penalty has value -3.0"),
        (["--seed=-1"], "--seed has value -1"),
        (["--stop="], "--stop has an empty text"),
        (["--threads=0", "--backend=cpp"], "--threads has value 0, expected a whole number from 1 to"),
        (["--context=4"], "the context of this engine (--context)"),
    ),
)
def test_errors_are_a_line(folder, capsys, arguments, message):
    assert run("generate", folder, "--raw", "t h e e r", *arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("airllm: ") and message in err and err.count("\n") == 1
    assert not re.search(r"\w_\w", err.replace(str(folder), ""))  # no name of Python's


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


def run_piped(*arguments: object, **how) -> subprocess.CompletedProcess:
    """The command as a shell starts it."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}",
        "AIRLLM_BACKEND": "python",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "airllm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=environment, timeout=60, **how)


def test_what_is_piped_follows_the_prompt(folder, engine):
    done = run_piped("generate", folder, "he", "--raw", "-q", "-n", 5, input=b"the thin\nman\n")
    expected = engine.generate("he\n\nthe thin\nman\n", 5) + "\n"
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected, b"")


def descriptor(kind: str, path: Path, data: bytes) -> int | None:
    """What a process may find as its stdin."""
    if kind == "closed":
        return None
    if kind == "pipe":
        there, here = os.pipe()
        os.write(here, data)
        os.close(here)
        return there
    if kind == "terminal":
        return os.openpty()[1]  # at which nobody types
    path.write_bytes(data)
    return os.open(path if kind == "file" else os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(
    ("kind", "data", "prompt", "expected"),
    (
        ("pipe", b"a\nb\n", "Sum:", "Sum:\n\na\nb\n"),
        ("file", b"a\nb\n", "Sum:", "Sum:\n\na\nb\n"),
        ("pipe", b"", "Sum:", "Sum:"),
        ("pipe", b" \n", "Sum:", "Sum:"),
        ("file", b"", "Sum:", "Sum:"),
        ("null", b"", "Sum:", "Sum:"),
        ("terminal", b"", "Sum:", "Sum:"),
        ("closed", b"", "Sum:", "Sum:"),
        ("pipe", b" a\n", None, " a\n"),
        ("pipe", b" a\n", "-", " a\n"),
        ("null", b"", None, None),
        ("closed", b"", "-", None),
        ("pipe", b"a \xff", "Sum:", "stdin has byte 0xff, expected text in UTF-8"),
        ("file", b"\xfe", None, "stdin has byte 0xfe, expected text in UTF-8"),
    ),
)
def test_what_stdin_adds_to_a_prompt(monkeypatch, tmp_path, kind, data, prompt, expected):
    number = descriptor(kind, tmp_path / "notes", data)
    stdin = None if number is None else os.fdopen(number, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    if expected is None or expected.startswith("stdin"):
        with pytest.raises(terminal.Refused, match=expected or "there is no prompt: give one, or pipe"):
            with_stdin(prompt)
    else:
        assert with_stdin(prompt) == expected


def test_a_pipe_that_stays_open_is_waited_for_and_that_is_said(monkeypatch, capsys):
    there, here = os.pipe()
    monkeypatch.setattr(piped_text, "_PATIENCE", 0.05)
    monkeypatch.setattr(sys, "stdin", os.fdopen(there, encoding="utf-8"))
    later = threading.Timer(0.3, lambda: (os.write(here, b"late"), os.close(here)))
    later.start()
    assert with_stdin("a") == "a\n\nlate"
    later.join()
    assert (
        capsys.readouterr().err == "airllm: waiting for the end of stdin (</dev/null where there is none)\n"
    )


def test_bytes_that_are_no_text_are_a_line(folder):
    done = run_piped(
        "generate", folder, b"\xff\xfe".decode("utf-8", "surrogateescape"), stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"airllm: ") and b"expected Unicode" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stdout_is_a_line(folder):
    for command in (["generate", folder, "hi"], ["chat", folder], ["info"]):
        done = run_piped(*command, input=b"", preexec_fn=lambda: os.close(1))
        expected = b"airllm: stdout is closed, expected a terminal, a file or a pipe\n"
        assert (done.returncode, done.stderr) == (1, expected)


def test_json(folder, engine, capsys):
    assert run("generate", folder, "he", "--raw", "-n", 7, "--json", "--top-k", 3) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["text"] == engine.generate("he", 7) and err == ""
    done = engine.statistics
    for name in ("prompt_tokens", "cached_tokens", "new_tokens"):
        assert found[name] == getattr(done, name)
    assert found["finish_reason"] == "length" and found["context"] == 64 and found["model"] == str(folder)
    assert found["seconds"] >= found["seconds_to_first_token"] > 0 and found["tokens_per_second"] > 0
    assert found["backend"] == engine.backend.name() and found["sampling"] == {"top_k": 3}


def test_drafts(folder, engine, capsys, tmp_path):
    raw = ("generate", folder, "he", "--raw", "-n", 30, "--json", "--backend=cpp")
    for more in ((), ("--no-speculation",), ("--draft-model", folder)):
        assert run(*raw, *more) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["text"] == engine.generate("he", 30)
        assert found["drafted_tokens"] >= found["accepted_tokens"] >= 0
        assert not (more == ("--no-speculation",) and found["drafted_tokens"])
    with pytest.raises(SystemExit, match="2"):
        run(*raw, "--no-speculation", "--draft-model", folder)
    assert "not allowed with argument" in capsys.readouterr().err
    other = write_gguf("llama3", tmp_path / "other.gguf")
    assert run(*raw, "--draft-model", other) == 1
    expected = f"airllm: --draft-model has value '{other}', expected a model with the same tokenizer: 4 of 80"
    assert capsys.readouterr().err.splitlines()[-1].startswith(expected)


def test_the_speed_says_how_much_was_drafted(engine):
    counts = {"prompt_tokens": 5, "cached_tokens": 0, "new_tokens": 40, "reasons": ("length",)}
    times = {"seconds_to_first_token": 1.0, "seconds": 2.0}
    for accepted, text in (
        (31, "40 tokens, 31 of them drafted, 39.0 tokens/s"),
        (0, "40 tokens, 39.0 tokens/s"),
    ):
        done = Statistics(**counts, **times, drafted_tokens=45, accepted_tokens=accepted)
        engine._generator.statistics = done
        assert summary_line(engine) == f"[{text}; context 45 of 64; ended by: length]"
        assert f"Drafts:  45 tokens, of which {accepted} were right" in detail_lines(engine)


def test_threads(folder, capsys):
    assert run("generate", folder, "he", "-n", 3, "--json", "--backend=cpp", "--threads", 1) == 0
    assert json.loads(capsys.readouterr().out)["device"].endswith(", 1 thread)")


@pytest.mark.parametrize(
    ("file", "arguments", "expected"),
    (
        ({}, [], {}),
        ({"temperature": 0.6, "top_p": 0.9}, [], {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.6, "top_p": 0.9}, ["--temperature=0"], {"temperature": 0.0, "top_p": 0.9}),
        ({"repetition_penalty": 1.1}, ["--top-k=5"], {"repetition_penalty": 1.1, "top_k": 5}),
    ),
)
def test_a_model_is_sampled_as_its_files_recommend(tmp_path, capsys, file, arguments, expected):
    speaking_model.write(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert run("generate", tmp_path, "he", "-n", 3, "--json", *arguments) == 0
    assert json.loads(capsys.readouterr().out)["sampling"] == expected
    options = argument_parser.parse_arguments(["chat", str(tmp_path), *arguments])
    with LayerWiseInferenceEngine(tmp_path) as engine:
        drawn = {} if "temperature" in file else {"temperature": 0.7, "top_p": 0.95}
        assert commands._sampling(engine, options) == drawn | expected
    assert run("info", tmp_path) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Sampling: ")]
    assert all(f"{name.replace('_', '-')} {value}" in line for name, value in file.items())


def test_a_text_beyond_what_the_model_was_made_for_is_told_in_a_line(folder, capsys):
    assert run("generate", folder, "a" * 70, "--raw", "-n", 3, "-q", "--context=100") == 0
    err = capsys.readouterr().err
    assert re.match(r"airllm: the text has 70 tokens now, and the model was made for at most 64: .*\n$", err)


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


def test_a_full_context_drops_the_oldest_turns_and_says_so(folder, engine, capsys, typed):
    context = len(engine.tokenizer.encode(CHAT)) + 9
    typed("hi\nhi\nhi\n")
    assert run("chat", folder, "--temperature=0", "-q", "-n", 4, f"--context={context}") == 0
    out, err = capsys.readouterr()
    assert out == 3 * (engine.generate(CHAT, 4) + "\n")
    assert err == 2 * f"[the context of {context} tokens is full: the 2 oldest messages are left out]\n"


def test_a_question_that_is_too_long_fails_and_the_conversation_goes_on(folder, engine, capsys, typed):
    typed("hi\n" + "a" * 80 + "\n/clear\nhi\n")
    assert run("chat", folder, "--temperature=0", "-q", "-n", 4) == 1
    out, err = capsys.readouterr()
    assert out == 2 * (engine.generate(CHAT, 4) + "\n")
    assert re.fullmatch(
        r"airllm: the conversation has \d+ tokens, expected at most 64: .*\(--context\)\n", err
    )


def test_ctrl_c_breaks_off_an_answer_and_keeps_what_was_said(engine, capsys, typed, monkeypatch):
    asked = []

    def stream_chat(messages, **options):
        asked.append(messages)
        yield "so "
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "stream_chat", stream_chat)
    typed("a\nb\n")
    assert not chat.converse(engine, None, {})
    assert capsys.readouterr().out == "so \nso \n"
    assert [each["content"] for each in asked[1]] == ["a", "so ", "b"]


def test_a_reader_of_a_conversation_that_has_enough(folder):
    command = [sys.executable, "-m", "airllm", "chat", str(folder), "-n", "20"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}", "AIRLLM_BACKEND": "python"}
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(command, input=b"hi\nhe\n", stdout=here, stderr=subprocess.PIPE, env=environment)
    os.close(here)
    assert (done.returncode, done.stderr) == (141, b"")


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
    assert "\nModels:         bert, cohere2, deepseek_v2, deepseek_v3, kimi_k2, kimi_k25, " in out
    assert run("info", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "python" in found["available_backends"] and found["model_types"] == types_of_folders()


def test_info_of_a_model(folder, capsys):
    assert run("info", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    weights = speaking_model.weights().values()
    assert any("llama, 2 layers of width 64" in line for line in lines)
    assert any(line.startswith("Memory: ") and "with a context of 64" in line for line in lines)
    assert any("4 heads of 16, 2 for keys and values" in line for line in lines)
    assert any(re.match(rf" *float16 +{len(weights)} tensors, ", line) for line in lines)
    assert any(f"{sum(each.size for each in weights) / 1000:.1f} k in" in line for line in lines)
    assert run("info", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["layers"] == 2 and found["context"] == found["trained_context"] == 64
    values = sum(each.size for each in weights)
    assert found["formats"] == [
        {"name": "float16", "tensors": len(weights), "values": values, "bytes": 2 * values}
    ]


@pytest.mark.parametrize(
    ("file", "wish"),
    (
        ({"backend_priority": ["numpy", "cpp"]}, "the first that runs of python, cpp"),
        ({"preferred_backend": "python"}, "python; if it cannot run, the first of cuda, rocm, mlx, "),
        ({"force_backend": "python"}, "python and no other"),
    ),
)
def test_info_says_what_was_configured_and_where(file, wish, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(file))
    line = describe._describe_config(config.read(path))
    assert line.startswith(wish) and line.endswith(f" ({path})") and "{" not in line


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


# ------------------------------------------------------------------------------------------------ progress


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


def test_info_tells_the_order_in_the_file_and_what_it_stands_for(tmp_path, monkeypatch, capsys):
    file = tmp_path / "backend.json"
    file.write_text("{}")
    monkeypatch.setenv("AIRLLM_CONFIG", str(file))
    settings = config.load_file()
    assert describe._describe_config(settings) == (
        "the first that runs of cuda, rocm, mlx, opencl, webgpu, cpp, python; "
        f"cuda, opencl, cpp, python, as shipped, stands for all ({file})"
    )
    file.write_text('{"backend_priority": ["cpp", "python"]}')
    assert describe._describe_config(config.load_file()) == f"the first that runs of cpp, python ({file})"
