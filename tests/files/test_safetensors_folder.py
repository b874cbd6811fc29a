"""Hugging Face folders: files written by the package `safetensors`, and broken ones."""

import json
import random
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from airllm.files import ModelFileError, open_weights
from airllm.files.safetensors import INDEX, SINGLE, SafetensorsFolder


def arrays() -> dict[str, np.ndarray]:
    values = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    return {
        "a.weight": values,
        "b.weight": values.astype(ml_dtypes.bfloat16),
        "c.weight": values[0].astype(np.float16),
        "d": np.arange(-3, 3, dtype=np.int8),
        "e": np.array(2.5, np.float64),
        "f": np.empty((0, 4), np.float32),
    }


@pytest.fixture
def folder(tmp_path) -> Path:
    save_file(arrays(), tmp_path / SINGLE)
    return tmp_path


@pytest.fixture
def sharded(tmp_path) -> Path:
    shards: dict[str, dict[str, np.ndarray]] = {"one.safetensors": {}, "two.safetensors": {}}
    for i, (name, array) in enumerate(arrays().items()):
        list(shards.values())[i % 2][name] = array
    for shard, tensors in shards.items():
        save_file(tensors, tmp_path / shard)
    index = {name: shard for shard, tensors in shards.items() for name in tensors}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))
    return tmp_path


@pytest.mark.parametrize("kind", ("folder", "sharded"))
def test_tensors_are_what_was_written_and_lie_in_the_map(kind, request):
    path = request.getfixturevalue(kind)
    with open_weights(path) as found:
        assert sorted(found.names()) == sorted(arrays())
        for name, array in arrays().items():
            tensor, span = found.tensor(name), found.span(name)
            assert tensor.dtype == array.dtype and tensor.shape == array.shape
            assert np.array_equal(tensor, array), name
            assert span.nbytes == array.nbytes
            whole = np.frombuffer(span.map, np.uint8)
            if array.nbytes:
                assert np.shares_memory(tensor, whole) and not tensor.flags.writeable
                assert whole[span.start :][: span.nbytes].tobytes() == array.tobytes()
    assert np.array_equal(tensor, array)  # also after closing


def test_the_package_reads_the_same(folder):
    theirs, ours = load_file(folder / SINGLE), SafetensorsFolder(folder)
    for name, array in theirs.items():
        assert np.array_equal(ours.tensor(name), array)


def test_shards_are_opened_when_needed(sharded):
    (sharded / "two.safetensors").write_bytes(b"broken")
    found = SafetensorsFolder(sharded)
    assert np.array_equal(found.tensor("a.weight"), arrays()["a.weight"])
    with pytest.raises(ModelFileError, match="two.safetensors: the file has 6 bytes, expected 8"):
        found.tensor("b.weight")


def test_an_unaligned_tensor_is_copied_to_where_kernels_can_read_it(tmp_path):
    values = np.arange(3, dtype=np.float32)
    header = b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
    odd = header + b" " * (1 + -len(header) % 4)
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(odd)) + odd + values.tobytes())
    found = SafetensorsFolder(tmp_path)
    assert found.span("x").start % 4 == 1
    assert found.tensor("x").flags.aligned and np.array_equal(found.tensor("x"), values)


def test_what_is_missing_is_named(folder, sharded, tmp_path):
    with pytest.raises(ModelFileError, match="tensor z is missing, expected one of a.weight, "):
        SafetensorsFolder(folder).tensor("z")
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=f"empty holds no files, expected {SINGLE} or {INDEX}"):
        SafetensorsFolder(empty)
    (empty / "pytorch_model.bin").touch()
    with pytest.raises(ModelFileError, match="empty holds pytorch_model.bin, expected"):
        SafetensorsFolder(empty)
    with pytest.raises(FileNotFoundError):
        SafetensorsFolder(tmp_path / "none" / "of" / "it")


def test_a_missing_shard_and_a_tensor_that_is_not_in_its_shard(sharded):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["ghost"] = "one.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    found = SafetensorsFolder(sharded)
    with pytest.raises(ModelFileError, match="one.safetensors: tensor ghost is missing, expected in this"):
        found.tensor("ghost")
    (sharded / "two.safetensors").unlink()
    with pytest.raises(ModelFileError, match="file two.safetensors is missing, expected 3 tensors in it"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize(
    ("index", "message"),
    (
        ({}, "weight_map is None, expected tensor names"),
        ({"weight_map": []}, r"weight_map is \[\], expected tensor names"),
        ({"weight_map": {"x": "../x.safetensors"}}, "tensor x lies in '../x.safetensors', expected the name"),
        ({"weight_map": {"x": "/etc/passwd"}}, "tensor x lies in '/etc/passwd', expected the name"),
        ({"weight_map": {"x": 3}}, "tensor x lies in 3, expected the name"),
        ([], "holds a list, expected a JSON object"),
    ),
)
def test_a_broken_index_says_so(tmp_path, index, message):
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=f"{INDEX}.*{message}"):
        SafetensorsFolder(tmp_path)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets})


HEADERS = {
    "no JSON": ("{", "the header is not JSON"),
    "deep": ("[" * 200_000, "the header is not JSON"),
    "list": ("[1]", "the header holds a list, expected a JSON object"),
    "twice": (f'{{"x": {entry()}, "x": {entry()}}}', "the header has 'x' twice"),
    "entry": ('{"x": 1}', "tensor x has dtype None, expected one of F32"),
    "dtype": (f'{{"x": {entry("F8_E5M2")}}}', "tensor x has dtype 'F8_E5M2', expected one of F32, F16"),
    "no shape": (f'{{"x": {entry(shape=None)}}}', "tensor x has shape None, expected at most 8 whole"),
    "shape": (f'{{"x": {entry(shape=(-2,))}}}', r"tensor x has shape \[-2\], expected at most 8 whole"),
    "fraction": (f'{{"x": {entry(shape=(2.0,))}}}', r"tensor x has shape \[2.0\], expected"),
    "truth": (f'{{"x": {entry(shape=(True,))}}}', r"tensor x has shape \[True\], expected"),
    "dimensions": (f'{{"x": {entry(shape=(1,) * 99)}}}', r"tensor x has shape \[1, 1.*, expected at most 8"),
    "huge together and empty": (
        f'{{"x": {entry(shape=(1 << 47, 1 << 47, 0), offsets=(0, 0))}}}', "tensor x has shape"
    ),
    "huge and empty": (f'{{"x": {entry(shape=(0, 1 << 62), offsets=(0, 0))}}}', "tensor x has shape"),
    "offsets": (f'{{"x": {entry(offsets=(8, 0))}}}', r"tensor x has data_offsets \[8, 0\], expected a start"),
    "three": (f'{{"x": {entry(offsets=(0, 4, 8))}}}', "tensor x has data_offsets"),
    "outside": (f'{{"x": {entry(shape=(9,), offsets=(0, 36))}}}', "tensor x takes bytes [0-9]+ to"),
    "size": (f'{{"x": {entry(shape=(3,))}}}', r"tensor x takes 8 bytes, expected 12 for F32 of shape \(3,\)"),
    "overlap": (
        f'{{"x": {entry()}, "y": {entry(offsets=(4, 12))}}}',
        "tensor y starts at byte [0-9]+, expected byte [0-9]+ or later, where tensor x ends",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_broken_header_says_where(tmp_path, what):
    header, message = HEADERS[what]
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(16))
    with pytest.raises(ModelFileError, match=f"{SINGLE}: {message}"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("length", (100, 1 << 40, (1 << 64) - 1))
def test_a_header_longer_than_the_file(tmp_path, length):
    (tmp_path / SINGLE).write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelFileError, match=f"the header takes {length} bytes, expected at most 2 in a"):
        SafetensorsFolder(tmp_path)


def survives(folder: Path, data: bytes) -> bool:
    (folder / SINGLE).write_bytes(data)
    try:
        found = SafetensorsFolder(folder)
        for name in found.names():
            assert found.tensor(name).nbytes == found.span(name).nbytes
    except ModelFileError:
        return False
    return True


def test_truncated_and_flipped_files_never_do_harm(folder, tmp_path):
    whole = (folder / SINGLE).read_bytes()
    assert not any(survives(tmp_path, whole[:size]) for size in range(len(whole)))
    rng, good = random.Random(4), 0
    header = 8 + struct.unpack_from("<Q", whole)[0]
    for _ in range(600):
        data = bytearray(whole)
        data[rng.randrange(header)] = rng.choice((0, 34, 48, 57, 255, rng.randrange(256)))
        good += survives(tmp_path, bytes(data))
    assert 0 < good < 600
