"""Models written in other formats: the values, what is kept, and that the file runs."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from airllm import cli
from airllm.formats import FORMATS, Quantized
from airllm.models import gguf_writing, open_weights
from airllm.models.gguf_file import GgufFile
from airllm.models.quantize import TARGETS, quantize

SHAPES = {
    "token_embd.weight": (70, 64),
    "output_norm.weight": (64,),
    "output.weight": (70, 64),
    "blk.0.attn_norm.weight": (64,),
    "blk.0.attn_q.weight": (96, 64),
    "blk.0.ffn_down.weight": (64, 40),
    "blk.0.ffn_gate_inp.weight": (4, 64),
    "blk.0.ffn_up_exps.weight": (4, 32, 64),
}


@pytest.fixture
def source(tmp_path) -> Path:
    """A file with all kinds of keys and tensors."""
    writer = gguf.GGUFWriter(path := tmp_path / "source.gguf", "llama")
    writer.add_custom_alignment(64)
    for kind, value in (("uint8", 200), ("int16", -3), ("uint32", 1 << 31), ("float64", 0.1), ("int64", -5)):
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_bool("a.bool", True)
    writer.add_float32("a.float32", 0.1)
    writer.add_string("a.string", "naïve 漢字")
    writer.add_array("a.texts", ["a", "", "🙂"])
    writer.add_key_value("a.numbers", [1, 1 << 31], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    writer.add_array("a.flags", [True, False])
    writer.add_file_type(1)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        values = rng.standard_normal(shape).astype(np.float32 if len(shape) == 1 else np.float16)
        writer.add_tensor(name, values)
    writer.add_tensor("whole", np.arange(5, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("format", TARGETS)
def test_tensors_have_the_format_and_the_values(source, tmp_path, format):
    quantize(source, target := tmp_path / "new.gguf", format)
    wanted, _ = TARGETS[format]
    with open_weights(source) as old, open_weights(target) as new:
        assert new.names() == old.names()
        for name in SHAPES:
            before, after = old.tensor(name), new.tensor(name)
            assert after.shape == before.shape
            into = wanted
            if name == "output.weight" and wanted in FORMATS:
                into = "q8_0"
            if before.ndim == 1 or "gate_inp" in name:
                into = "float32"
            if name.endswith("ffn_down.weight") and wanted in FORMATS:
                into = "float16"
            if isinstance(after, Quantized):
                assert after.format == into
                kind = gguf.GGMLQuantizationType[into.upper()]
                rows = np.asarray(before, np.float32).reshape(-1, before.shape[-1])
                expected = gguf.quants.quantize(rows, kind)
                assert np.array_equal(after.data.reshape(expected.shape), expected), name
            else:
                assert str(after.dtype) == into
                assert np.array_equal(after, np.asarray(before).astype(after.dtype)), name
        assert np.array_equal(new.tensor("whole"), np.arange(5))


def test_pieces_make_the_same_file(source, tmp_path, monkeypatch):
    quantize(source, whole := tmp_path / "whole.gguf", "q5_1")
    monkeypatch.setattr(gguf_writing.in_pieces, "__defaults__", (100,))
    seen = []
    quantize(source, pieces := tmp_path / "pieces.gguf", "q5_1", lambda *at: seen.append(at))
    assert pieces.read_bytes() == whole.read_bytes()
    assert len(seen) > 100 and seen[-1][0] == seen[-1][1]


def test_metadata_are_kept_with_their_types(source, tmp_path):
    quantize(source, target := tmp_path / "new.gguf", "q4_0")
    with GgufFile(source) as old, GgufFile(target) as new:
        left = {"general.alignment", "general.file_type"}
        for key in set(old.metadata) - left:
            assert np.array_equal(new.metadata[key], old.metadata[key]), key
            assert new.metadata.types[key] == old.metadata.types[key], key
        assert new.metadata["general.file_type"] == 2
        assert set(new.metadata) == set(old.metadata) - left | {
            "general.file_type", "general.quantization_version",
        }  # fmt: skip
    reader = gguf.GGUFReader(target)
    assert reader.fields["a.string"].contents() == "naïve 漢字"
    assert [tensor.name for tensor in reader.tensors] == [*SHAPES, "whole"]


def test_what_has_the_format_already_is_copied(source, tmp_path):
    first = quantize(source, tmp_path / "first.gguf", "q4_0")
    again = quantize(first.path, tmp_path / "again.gguf", "q4_0")
    assert again.path.read_bytes() == first.path.read_bytes() and again.twice == ()
    assert quantize(first.path, tmp_path / "third.gguf", "q8_0").twice == ("q4_0",)


def test_nothing_is_left_of_a_file_that_could_not_be_written(source, tmp_path, monkeypatch):
    def full(self, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_writing._Data, "tofile", full)
    with pytest.raises(OSError, match="No space left"):
        quantize(source, tmp_path / "new.gguf", "q4_0")
    assert os.listdir(tmp_path) == ["source.gguf"]


def test_the_command(source, tmp_path, capsys):
    target = tmp_path / "new.gguf"
    assert cli.main(["quantize", str(source), str(target), "--format", "q8_0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{target}: ") and err == "Writing new.gguf ...\n"
    for arguments, message in (
        ([str(source), str(target)], "is there already: remove it"),
        (
            [str(source), str(tmp_path / "x"), "--format", "q3_k"],
            "format has value 'q3_k', expected one of f32",
        ),
        ([str(tmp_path / "none.gguf"), str(tmp_path / "x")], "no such file"),
    ):
        assert cli.main(["quantize", *arguments]) == 1
        assert message in capsys.readouterr().err
