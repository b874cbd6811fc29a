"""`airllm generate`, on a tiny model."""

import json
import re

import pytest
from command_line import CHAT, run

from airllm.cli import argument_parser, commands
from airllm.cli.answer_printer import detail_lines, summary_line
from airllm.engine.request import Statistics
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model
from tests.support.models.tiny_gguf import write_gguf


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
        (["--max-tokens=0"], "--max-tokens has value 0, expected 1 or more"),
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
