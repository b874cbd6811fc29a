"""A short run of the fuzzers, always the same; and that they find what they are for."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from environment import ALL

from tests.fuzz.__main__ import main
from tests.fuzz.mutate_gguf import find_fields
from tests.fuzz.runner import inputs, listed, run
from tests.fuzz.seeds import CORPUS, small_gguf
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children with limits need fork()")


def start_fuzz(*arguments: object) -> subprocess.CompletedProcess:
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT), str(ROOT / "cpp_ext")]
    environment = {**os.environ, "AIRLLM_TUNING": "off", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_no_input_of_a_short_run_is_a_finding(tmp_path):
    """The seeds, the corpus, in which every finding of the past is, and some more."""
    pytest.importorskip("tensor_ops_cpp")
    done = start_fuzz("--inputs", 2000 if ALL else 25, "--findings", tmp_path)
    reports = "".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + reports
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == list(TARGETS)


def test_inputs_depend_on_the_seed_alone():
    def first(seed: int) -> list[bytes | None]:
        return [*map(inputs("config", TARGETS["config"], seed, most=20), range(100))]

    assert first(1) == first(1) != first(2)
    made = len(TARGETS["config"].seeds("config")) + 20
    assert first(1)[made:] == [None] * (100 - made) and len(set(first(1))) > made - 5


def test_all_fields_of_a_file_are_found(tmp_path):
    """The last one is the offset of the last tensor: nothing before it was misread."""
    data = small_gguf(tmp_path / "x.gguf")
    fields = list(find_fields(data))
    roles = [field.role for field in fields]
    assert roles.count("offset") == int.from_bytes(data[8:16], "little") == 12
    assert roles.count("key name") == int.from_bytes(data[16:24], "little")
    assert {"count", "type", "value", "text length", "dimension", "tensor type"} <= {*roles}


def make_broken(data: bytes) -> None:
    """What an input does is its first word."""
    what = data.split()[0]
    if what == b"dies":
        os.kill(os.getpid(), 11)
    if what == b"waits":
        time.sleep(60)
    if what == b"grows":
        bytearray(1 << 31)
    if what == b"exits":
        os._exit(7)
    if what == b"fails":
        raise KeyError("x")
    if what == b"unnamed":
        raise ValueError("something is wrong")
    if what == b"named":
        raise ValueError("input.txt: something is wrong")


BROKEN = Target(
    "input.txt",
    (lambda data, chance, seeds: data,),
    lambda folder: lambda path: make_broken(path.read_bytes()),
    errors=("ValueError",),
    seconds=6.0,  # on a busy machine a process with gigabytes takes seconds to end
    megabytes=256,
)


def test_what_must_not_come_of_an_input_is_found_and_kept(tmp_path, monkeypatch):
    """And of children that were killed nothing is left over."""
    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(left))
    words = b"fine dies named waits grows fails unnamed exits named fine fails".split()
    outcome = run("broken", BROKEN, listed(words), folder=tmp_path)
    found = {finding.place: finding.data for finding in outcome.findings.values()}
    at = "test_fuzz.py:"
    assert {place.partition(at)[0]: data for place, data in found.items()} == {
        "ended by SIGSEGV": b"dies",
        "takes more than 6 s": b"waits",
        "MemoryError at ": b"grows",
        "KeyError at ": b"fails",
        "ValueError at ": b"unnamed",
        "ended with status 7": b"exits",
    }
    assert outcome.counts == {"accepted": 2, "refused": 2, "findings": 7}
    for finding in outcome.findings.values():
        assert finding.path.read_bytes() == finding.data
        assert f"--input {finding.path}" in finding.path.with_suffix(".txt").read_text()
    assert list(left.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    (
        (["none"], "TARGET has ['none'], expected of gguf, safetensors"),
        (["gguf"], "give --seconds or --inputs"),
    ),
)
def test_the_command_refuses_what_it_does_not_know(monkeypatch, capsys, arguments, says):
    monkeypatch.setattr(sys, "argv", ["fuzz", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2 and says in capsys.readouterr().err


def test_every_target_has_a_corpus():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
