"""Writing backend.json: all or nothing, keys of others stay, and two writers lose nothing."""

import json
import os
import threading
from pathlib import Path

import pytest
from backend_json import DOCUMENTED, prefer

from airllm.backends import config


def test_write_keeps_other_keys_their_order_and_the_mode(places):
    path = places["checkout"]
    path.write_text('{"note": "für uns", "force_backend": "cuda", "tune": {"cpp": [1, 2]}}')
    path.chmod(0o640)
    assert config.write(path, force_backend=None, preferred_backend="cpp").force_backend is None
    assert list(json.loads(path.read_text()).items()) == [
        ("note", "für uns"),
        ("force_backend", None),
        ("tune", {"cpp": [1, 2]}),
        ("preferred_backend", "cpp"),
    ]
    assert "für uns" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640


def test_write_makes_the_file_of_the_document(places):
    config.write(places["checkout"])
    assert places["checkout"].read_text() == DOCUMENTED


def test_write_follows_a_link(places, tmp_path):
    prefer(tmp_path / "real.json", "cpp")
    places["checkout"].symlink_to(tmp_path / "real.json")
    config.write(places["checkout"], preferred_backend="python")
    assert places["checkout"].is_symlink()
    assert config.read(tmp_path / "real.json").preferred_backend == "python"


@pytest.mark.parametrize("old", ["{", '{"force_backend": "tpu"}'])
def test_nothing_is_written_over_a_file_that_stays_wrong(places, old):
    places["checkout"].write_text(old)
    with pytest.raises(config.ConfigError):
        config.write(places["checkout"], preferred_backend="cpp")
    assert places["checkout"].read_text() == old
    assert sorted(os.listdir(config.CHECKOUT)) == ["backend.json", "setup.py"]


def test_write_can_mend_the_key_that_is_wrong(places):
    places["checkout"].write_text('{"force_backend": "tpu", "x": 1}')
    assert config.write(places["checkout"], force_backend=None).force_backend is None


def test_a_failed_write_leaves_the_old_file_alone(places, monkeypatch):
    prefer(places["checkout"], "cpp")
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(config.ConfigError, match="cannot be written: No space left on device"):
        config.write(places["checkout"], preferred_backend="python")
    assert config.read(places["checkout"]).preferred_backend == "cpp"
    assert sorted(os.listdir(config.CHECKOUT)) == ["backend.json", "setup.py"]


WRONG = '{"x": 1, "prefered_backend": "cpp", "force_backend": "tpu", "opencl_device": null}'


@pytest.mark.parametrize("old", ["{", "[]", WRONG])
def test_reset_writes_the_defaults_over_anything(places, old):
    places["checkout"].write_text(old)
    config.reset(places["checkout"])
    assert config.load().as_dict() == config.DEFAULTS
    assert json.loads(places["checkout"].read_text()) == config.DEFAULTS | ({"x": 1} if old == WRONG else {})


def test_a_reader_never_sees_half_a_file(places):
    """A writer makes the file long and short in turn while this thread reads: every reading must be whole."""
    path = places["checkout"]
    config.write(path, note="x")
    stop = threading.Event()

    def rewrite():
        for turn in range(200):
            config.write(path, note="x" * (200_000 if turn % 2 else 1))
        stop.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    readings = 0
    while not stop.is_set():
        config.read(path)
        readings += 1
    writer.join()
    assert readings > 20


def test_two_that_change_a_file_lose_nothing_of_each_other(tmp_path, monkeypatch):
    """Another begins to write while one has read the file and not written yet."""
    path, begun = tmp_path / "backend.json", []
    config.write(path, preferred_backend="cpp")
    opened = config._open_file

    def meanwhile(asked: Path) -> config._File:
        found = opened(asked)
        if not begun:
            begun.append(threading.Thread(target=config.write, args=(path,), kwargs={"force_backend": "cpp"}))
            begun[0].start()
            begun[0].join(0.3)  # without a lock it is through in no time
        return found

    monkeypatch.setattr(config, "_open_file", meanwhile)
    config.write(path, opencl_device="0")
    begun[0].join()
    found = config.read(path)
    assert (found.preferred_backend, found.force_backend, found.own["opencl_device"]) == ("cpp", "cpp", "0")
    assert os.listdir(tmp_path) == ["backend.json"]


def test_half_a_character_in_anothers_key_stays(tmp_path):
    path = tmp_path / "backend.json"
    path.write_text('{"\\ud800": "\\udfff"}')
    config.write(path, preferred_backend="cpp")
    assert json.loads(path.read_text(encoding="utf-8"))["\ud800"] == "\udfff"
    config.reset(path)
    assert json.loads(path.read_text(encoding="utf-8"))["\ud800"] == "\udfff"
