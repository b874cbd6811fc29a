"""The GGUF reader: files written by the package `gguf`, the real SmolLM2, and broken ones."""

import gc
import random
import struct
import sys
import time
import tracemalloc
from pathlib import Path

import checkouts
import documents
import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from airllm.files import ModelFileError, open_weights
from airllm.files.gguf import GgufFile
from airllm.formats import FORMATS, Quantized

SCALARS = {
    "uint8": 200,
    "int8": -100,
    "uint16": 60000,
    "int16": -30000,
    "uint32": 4_000_000_000,
    "int32": -2_000_000_000,
    "float32": 0.5,
    "uint64": 1 << 63,
    "int64": -(1 << 62),
    "float64": 1e300,
    "bool": True,
    "string": "naïve 漢字",
}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "one.weight": rng.standard_normal(5).astype(np.float32),
        "two.weight": rng.standard_normal((3, 4)).astype(np.float16),
        "three.weight": rng.standard_normal((2, 3, 4)).astype(np.float32),
        "bytes": rng.integers(-100, 100, (2, 7)).astype(np.int8),
    }


def blocks(name: str) -> np.ndarray:
    of = FORMATS[name]
    return np.random.default_rng(2).integers(0, 60, (2, 3, 2 * of.bytes), dtype=np.uint8)


def write_gguf_file(path: Path, alignment: int = 0, formats: tuple[str, ...] = ("q4_1", "q6_k")) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, value in SCALARS.items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_array("a.words", ["", "Ġt", "漢"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.scores", [0.5, -0.25])
    writer.add_array("a.flags", [True, False])
    for name, array in arrays().items():
        writer.add_tensor(name, array)
    brain = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    writer.add_tensor("brain", brain.view(np.uint8), raw_dtype=Type.BF16)
    for name in formats:
        writer.add_tensor(name, blocks(name), raw_dtype=Type(FORMATS[name].ggml_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_gguf_file(tmp_path_factory.mktemp("gguf") / "small.gguf")


def start(keys: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def line(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor in the header."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def test_metadata_is_what_was_written(small):
    with GgufFile(small) as file:
        for kind, value in SCALARS.items():
            found = file.metadata[f"a.{kind}"]
            assert found == value and type(found) is type(value), kind
        assert file.metadata["a.words"] == ["", "Ġt", "漢"]
        assert file.metadata["a.numbers"].tolist() == [1, -2, 3]
        assert file.metadata["a.scores"].tolist() == [0.5, -0.25]
        assert file.metadata["a.flags"].tolist() == [True, False]
        assert file.metadata["general.architecture"] == "llama"
        assert "b" not in file.metadata and file.metadata.get("b") is None


def test_tensors_are_what_was_written_and_lie_in_the_map(small):
    file = GgufFile(small)
    for name, array in arrays().items():
        found = file.tensor(name)
        assert found.dtype == array.dtype and np.array_equal(found, array), name
    assert file.tensor("brain").dtype == ml_dtypes.bfloat16
    assert file.tensor("brain").astype(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    for name in ("q4_1", "q6_k"):
        found = file.tensor(name)
        assert isinstance(found, Quantized) and found.format == name
        assert np.array_equal(found.data, blocks(name))
        assert found.shape == (2, 3, 2 * FORMATS[name].values)
    whole = np.frombuffer(file.span("one.weight").map, np.uint8)
    for name in file.names():
        found, span = file.tensor(name), file.span(name)
        data = found.data if isinstance(found, Quantized) else found
        assert np.shares_memory(data, whole) and not data.flags.writeable and data.flags.aligned
        place = data.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        assert (span.start, span.nbytes) == (place, data.nbytes)


@pytest.mark.parametrize("name", FORMATS)
def test_every_block_format(tmp_path, name):
    with GgufFile(write_gguf_file(tmp_path / "x.gguf", formats=(name,))) as file:
        expected = gguf.dequantize(blocks(name), Type(FORMATS[name].ggml_type))
        assert np.array_equal(file.tensor(name).dequantize(), expected, equal_nan=True)


@pytest.mark.parametrize("alignment", (8, 64, 4096))
def test_alignment(tmp_path, alignment):
    with open_weights(write_gguf_file(tmp_path / "x.gguf", alignment)) as file:
        assert all(file.span(name).start % alignment == 0 for name in file.names())
        assert np.array_equal(file.tensor("two.weight"), arrays()["two.weight"])


def test_version_2_is_read_like_3(small, tmp_path):
    path = tmp_path / "two.gguf"
    path.write_bytes(small.read_bytes().replace(struct.pack("<I", 3), struct.pack("<I", 2), 1))
    file = GgufFile(path)
    assert file.version == 2 and file.names() == GgufFile(small).names()


def test_arrays_outlive_a_closed_file(small):
    with GgufFile(small) as file:
        kept = file.tensor("one.weight")
    del file
    gc.collect()
    assert np.array_equal(kept, arrays()["one.weight"])


def test_the_real_file_as_its_own_package_reads_it(real_file):
    theirs, ours = gguf.GGUFReader(real_file), GgufFile(real_file)
    assert ours.names() == [tensor.name for tensor in theirs.tensors] and len(ours.names()) == 272
    for tensor in theirs.tensors:
        found = ours.tensor(tensor.name)
        data = found.data if isinstance(found, Quantized) else found
        assert found.shape == tuple(tensor.shape[::-1])
        assert ours.span(tensor.name)[1:] == (tensor.data_offset, tensor.n_bytes)
        assert np.array_equal(data, tensor.data), tensor.name
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        found = ours.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == field.contents(), key
    times = []
    for _ in range(5):
        begin = time.process_time()  # of this process alone: the machine may be busy
        GgufFile(real_file).close()
        times.append(time.process_time() - begin)
    assert min(times) < 0.1


HEADER_ERRORS = {
    "empty": (b"", "is empty"),
    "magic": (b"GGML" + bytes(60), r"the magic number is b'GGML', expected b'GGUF'"),
    "short": (b"GG", "the magic number at byte 0 takes 4 bytes, expected at most 2"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "the file is big-endian"),
    "version": (start(version=1), "the version is 1, expected 2 or 3"),
    "keys": (start(keys=1 << 62), "the number of keys is 4611686018427387904, expected at most 0"),
    "tensors": (start(tensors=9) + bytes(50), "the number of tensors is 9, expected at most 2"),
    "key type": (start(1) + text("k") + struct.pack("<II", 13, 0), "key k has type 13, expected a type"),
    "key bytes": (start(1) + text(b"\xff") + bytes(12), "the name of key 0 at byte 32 has bytes"),
    "bool": (start(1) + text("k") + struct.pack("<IB", 7, 2), "key k has value 2, expected a boolean"),
    "text": (start(1) + text("k") + struct.pack("<IQ", 8, 99), "key k at byte 45 takes 99 bytes"),
    "array": (start(1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 60), "k: the number of items is 1152"),
    "nested": (start(1) + text("k") + struct.pack("<IIQ", 9, 9, 0), "key k is an array of type 9"),
    "words": (
        start(1) + text("k") + struct.pack("<IIQ", 9, 8, 2) + text("ab") + bytes(7),
        "key k ends with the file in item 1, expected 2 items",
    ),
    "long word": (
        start(1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 1 << 63),
        "key k takes 9223372036854775816 bytes, expected at most 8",
    ),
    "twice": (start(2) + (text("k") + struct.pack("<IB", 0, 1)) * 2, "key k stands twice"),
    "alignment 0": (
        start(1) + text("general.alignment") + struct.pack("<II", 4, 0),
        "key general.alignment has value 0, expected a power of two",
    ),
    "alignment of text": (
        start(1) + text("general.alignment") + struct.pack("<I", 8) + text("x" * 999),
        "key general.alignment has value 'xxx.*[.]{3}, expected a power of two",
    ),
    "parts": (
        start(1) + text("split.count") + struct.pack("<IH", 2, 3),
        "key split.count has value 3, expected 1, by the file's name",
    ),
    "number of parts": (
        start(1) + text("split.count") + struct.pack("<If", 6, 3),
        "key split.count has value 3.0, expected a whole number",
    ),
    "dimensions": (start(0, 1) + line("t", (1,) * 5), "tensor t has 5 dimensions, expected at most 4"),
    "dimension": (start(0, 1) + line("t", (0, 5)), r"tensor t has shape \(5, 0\), expected dimensions of 1"),
    "type": (start(0, 1) + line("t", (32,), 99), "tensor t has type 99, expected one of float32, float16"),
    "known type": (start(0, 1) + line("t", (256,), 41), r"tensor t has type 41 \(q1_0\), expected one"),
    "row": (start(0, 1) + line("t", (33, 2), 8), r"t has shape \(2, 33\), expected rows of a multiple of 32"),
    "offset": (start(0, 1) + line("t", (4,), 0, 4) + bytes(64), "tensor t has offset 4, expected a multiple"),
    "outside": (
        start(0, 1) + line("t", (99,)) + bytes(99),
        "tensor t takes bytes 64 to 460, expected an end",
    ),
    "huge": (start(0, 1) + line("t", (1 << 63, 1 << 63)) + bytes(99), "tensor t takes bytes 96 to 3402823"),
    "same": (start(0, 2) + line("t", (4,)) * 2 + bytes(99), "tensor t stands twice"),
    "overlap": (
        start(0, 2) + line("t", (9,)) + line("u", (9,), 0, 32) + bytes(99),
        "tensor u starts at byte 128, expected byte 132 or later, where tensor t ends",
    ),
}


@pytest.mark.parametrize("what", HEADER_ERRORS)
def test_a_broken_file_says_where(tmp_path, what):
    data, message = HEADER_ERRORS[what]
    (path := tmp_path / "broken.gguf").write_bytes(data)
    with pytest.raises(ModelFileError, match=message) as caught:
        GgufFile(path)
    assert str(caught.value).startswith(f"{path}: " if what != "empty" else f"{path} is")
    assert caught.value.path == path


def test_words_that_are_no_text_are_named_when_asked_for(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(start(1) + text("k") + struct.pack("<IIQ", 9, 8, 2) + text("ab") + text(b"\xc3("))
    file = GgufFile(path)
    with pytest.raises(ModelFileError, match=r"key k has bytes b'\\xc3\(' in item 1, expected UTF-8"):
        file.metadata["k"]


def test_an_error_is_one_line_without_control_characters(tmp_path):
    """A file's own words must neither control a terminal nor begin a line of a log."""
    for name in ("\x1b[2Jx", "a\nERROR b", "\x9b1m", "\x00", "\x7f"):
        (path := tmp_path / "x.gguf").write_bytes(start(2) + (text(name) + struct.pack("<IB", 0, 1)) * 2)
        with pytest.raises(ModelFileError, match="stands twice") as caught:
            GgufFile(path)
        assert str(caught.value).isprintable()
        assert repr(name)[1:-1] in str(caught.value)


def test_a_missing_tensor_and_a_missing_file(small, tmp_path):
    with pytest.raises(ModelFileError, match="small.gguf: tensor four is missing, expected one of one.weig"):
        GgufFile(small).tensor("four")
    with pytest.raises(FileNotFoundError):
        GgufFile(tmp_path / "none.gguf")


def survives(path: Path, data: bytes) -> bool:
    """Read everything in it: True if that goes well, False for a ModelFileError; anything else is raised."""
    path.write_bytes(data)
    try:
        file = GgufFile(path)
        for key in file.metadata:
            file.metadata[key]
        for name in file.names():
            found = file.tensor(name)
            assert np.asarray(found.data if isinstance(found, Quantized) else found).tobytes() is not None
    except ModelFileError:
        return False
    return True


def test_truncated_at_every_byte(small, tmp_path):
    data = small.read_bytes()
    header = GgufFile(small)._parts[0].data_start
    last = max(span.start + span.nbytes for span in map(GgufFile(small).span, GgufFile(small).names()))
    assert not any(survives(tmp_path / "x.gguf", data[:size]) for size in range(header))
    assert not any(survives(tmp_path / "x.gguf", data[:size]) for size in range(header, last, 101))
    assert survives(tmp_path / "x.gguf", data[:last])


def test_flipped_bytes_never_do_harm(small, tmp_path):
    whole, header = small.read_bytes(), GgufFile(small)._parts[0].data_start
    rng = random.Random(3)
    good = 0
    tracemalloc.start()
    for _ in range(800):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(4, header)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        good += survives(tmp_path / "x.gguf", bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < good < 800
    assert peak < 1 << 20  # bytes, for a file of four thousand


READS_SIGNS = """
import numpy as np
from airllm import tensor_ops
from airllm.files.gguf import GgufFile
values, x = np.load("values.npy"), np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
with GgufFile("signs.gguf") as file:
    weight = file.tensor("w")
    assert weight.format == "signs" and np.array_equal(weight.dequantize(), values)
    np.testing.assert_allclose(tensor_ops.linear(x, weight), x @ values.T, rtol=1e-5, atol=1e-5)
    assert np.array_equal(tensor_ops.embedding([4, 1], weight), values[[4, 1]])
    del weight
"""


def test_the_guide_adds_a_format(tmp_path):
    """Its function and its row, beside the table: files of it are read, and ops take it."""
    checkout = checkouts.copy(tmp_path)
    examples = (code for _, code in documents.blocks("BACKEND_GUIDE.md", "python"))
    (added,) = (code for code in examples if 'FORMATS["signs"] = ' in code)
    with open(checkout / "airllm" / "formats" / "table.py", "a") as file:
        file.write(
            "import numpy as np\n\n\n"
            + added[added.index("def unpack_signs") : added.index("signs = Quantized(")]
        )
    rng = np.random.default_rng(8)
    scales, signs = (
        rng.standard_normal((6, 2, 1)).astype(np.float16),
        rng.integers(0, 2, (6, 2, 32), np.uint8),
    )
    np.save(tmp_path / "values.npy", np.where(signs, scales, -scales).reshape(6, 64).astype(np.float32))
    stored = np.concatenate([scales.view(np.uint8), np.packbits(signs, axis=-1, bitorder="little")], axis=-1)
    header = start(tensors=1) + line("w", (64, 6), kind=99)
    (tmp_path / "signs.gguf").write_bytes(header + bytes(-len(header) % 32) + stored.tobytes())
    paths = f"{checkout}:{checkout / 'cpp_ext'}"
    answer = checkouts.run([sys.executable, "-c", READS_SIGNS], checkout, PYTHONPATH=paths)
    assert answer.returncode == 0, checkouts.output_of(answer)
