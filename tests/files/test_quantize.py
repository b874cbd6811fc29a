"""Models written in other formats: the values, what is kept, and that the file runs."""

import json
import os
import shutil
from pathlib import Path

import gguf
import libgguf
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from airllm.architectures import config_of
from airllm.cli import commands
from airllm.convert.mixes import TARGETS
from airllm.convert.quantize import quantize
from airllm.convert.tokenizer_to_gguf import tokenizer_keys
from airllm.files import ModelFileError, gguf_writer, open_weights
from airllm.files.gguf import GgufFile
from airllm.formats import FORMATS, Quantized
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model, tiny_gguf, tiny_models, tokenizer_files

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


@pytest.mark.parametrize("format", [name for name, mix in TARGETS.items() if mix.output != "q6_k"])
def test_tensors_have_the_format_and_the_values(source, tmp_path, format):
    quantize(source, target := tmp_path / "new.gguf", format)
    wanted = TARGETS[format].format
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
            if format == "mxfp4_moe" and "_exps" in name:
                into = "mxfp4"
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
    monkeypatch.setattr(gguf_writer.in_pieces, "__defaults__", (100,))
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

    monkeypatch.setattr(gguf_writer._Data, "tofile", full)
    with pytest.raises(OSError, match=r"No space left on device, while it was written: '.*new.gguf'"):
        quantize(source, tmp_path / "new.gguf", "q4_0")
    assert os.listdir(tmp_path) == ["source.gguf"]


@pytest.mark.parametrize("room", (100, 5000))
def test_nothing_is_left_where_closing_the_file_fails_too(source, tmp_path, room):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError, match=r"File too large, while it was written: '.*new.gguf'"):
            quantize(source, tmp_path / "new.gguf", "f32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["source.gguf"]


@pytest.mark.parametrize("links", (True, False))
def test_two_that_write_one_file_do_not_meet(source, tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *paths: os.stat(tmp_path / "nothing"))
    target, made = tmp_path / "new.gguf", []

    def meanwhile(done: int, total: int) -> None:
        if not made:
            made.append(b"")
            quantize(source, target, "q4_0")
            made[0] = target.read_bytes()

    with pytest.raises(FileExistsError, match="new.gguf was written by another process meanwhile"):
        quantize(source, target, "f32", meanwhile)
    assert target.read_bytes() == made[0] != b""
    assert sorted(os.listdir(tmp_path)) == ["new.gguf", "source.gguf"]


def test_the_command(source, tmp_path, capsys):
    target = tmp_path / "new.gguf"
    assert commands.main(["quantize", str(source), str(target), "--format", "Q8_0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{target}: ") and err == "Writing new.gguf ...\n"
    with GgufFile(target) as made:
        assert made.metadata["general.file_type"] == 7
    for arguments, message in (
        ([str(source), str(target)], "exists already: remove it"),
        (
            [str(source), str(tmp_path / "x"), "--format", "iq2_xs"],
            "format has value 'iq2_xs', expected one of f32",
        ),
        ([str(tmp_path / "none.gguf"), str(tmp_path / "x")], "no such file"),
    ):
        assert commands.main(["quantize", *arguments]) == 1
        assert message in capsys.readouterr().err


@pytest.fixture
def wide(tmp_path) -> Path:
    """A tiny Llama with rows of 256 values, and of 64."""
    rng = np.random.default_rng(1)
    shapes = {
        "token_embd.weight": (80, 256),
        "blk.0.attn_q.weight": (64, 256),
        "blk.0.attn_v.weight": (32, 256),
    }
    shapes |= {"blk.0.attn_output.weight": (256, 64), "blk.0.ffn_down.weight": (256, 512)}
    writer = gguf.GGUFWriter(path := tmp_path / "wide.gguf", "llama")
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("format", [name for name, mix in TARGETS.items() if mix.output == "q6_k"])
def test_a_mix_has_the_bytes_of_ggml(wide, tmp_path, format):
    """In one layer, which is among the first and the last; so are attn_v and ffn_down."""
    made = quantize(wide, tmp_path / "new.gguf", format.upper()).path
    mix, formats = TARGETS[format], {}
    with open_weights(wide) as old, GgufFile(made) as new:
        assert new.metadata["general.file_type"] == mix.file_type
        for name in old.names():
            after = new.tensor(name)
            formats[name.removesuffix(".weight")] = after.format
            kind = gguf.GGMLQuantizationType(FORMATS[after.format].ggml_type)
            assert np.array_equal(after.data, libgguf.quantize_rows(old.tensor(name), kind)), name
    assert formats["token_embd"] == "q6_k" and formats["blk.0.attn_q"] == mix.format
    assert formats["blk.0.attn_output"] in ("q4_0", "q5_0", "q5_1", "q8_0", "iq4_nl")
    more = {"q4_k_m": "q6_k", "q5_k_m": "q6_k", "q4_k_s": "q5_k", "q3_k_m": "q5_k", "q2_k": "q4_k"}
    if format in more:
        assert formats["blk.0.attn_v"] == more[format]


# ------------------------------------------------------------------------------------------------ folders


def with_tokenizer(name: str, folder: Path) -> Path:
    """A tiny model of tests/data with a tokenizer that fits into its vocabulary."""
    shutil.copytree(tiny_models.DATA / name, folder, dirs_exist_ok=True)
    return tokenizer_files.write_tokenizer(folder)


@pytest.mark.parametrize("name", [*tiny_models.AS_GGUF, "qwen2_window"])
def test_a_folder_becomes_a_file_with_the_same_logits(tmp_path, name):
    folder = with_tokenizer(name, tmp_path / "model")
    made = quantize(folder, tmp_path / "model.gguf", "f32")
    expected = tiny_models.reference(name)
    with LayerWiseInferenceEngine(made.path, cache_dtype="f32") as engine:
        for text, logits in zip(tiny_models.texts(), expected, strict=True):
            found = engine.forward(text, all_positions=True)
            assert np.abs(found - logits).max() < 2e-4 * np.ptp(logits)


@pytest.mark.parametrize("name", ("lfm2", "qwen3_5", "granite_hybrid", "nemotron_h"))
def test_what_recurrent_layers_multiply_with_stays_float32(tmp_path, name):
    source = tiny_gguf.write_gguf(name, tmp_path / "model.gguf")
    quantize(source, target := tmp_path / "small.gguf", "q8_0")
    parts = ("shortconv.conv.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d")
    kinds = {each.tensor_type for each in gguf.GGUFReader(target).tensors if each.name.endswith(parts)}
    assert kinds == {gguf.GGMLQuantizationType.F32}


def test_a_folder_with_one_rotation_in_layers_that_may_have_two(tmp_path):
    folder = with_tokenizer("gemma3", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    plain = {"rope_type": "default", "rope_theta": 100.0}
    config["rope_parameters"] = {"full_attention": plain, "sliding_attention": plain}
    (folder / "config.json").write_text(json.dumps(config))
    with open_weights(quantize(folder, tmp_path / "model.gguf", "f32").path) as made:
        read = config_of(made)
    assert {read.rope_of(layer).theta for layer in range(read.layers)} == {100.0}


def test_what_a_file_cannot_say_is_refused(tmp_path):
    folder = with_tokenizer("qwen3_moe_some", tmp_path / "model")
    what = r"config.json: the model's moe_layers, .* cannot be stored in a GGUF file: it would be read as"
    with pytest.raises(ModelFileError, match=what):
        quantize(folder, tmp_path / "model.gguf", "f32")
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_speaks_as_a_file_too(tmp_path):
    folder = speaking_model.write(tmp_path / "model")
    made = quantize(folder, tmp_path / "model.gguf", "f16")
    with LayerWiseInferenceEngine(folder) as before, LayerWiseInferenceEngine(made.path) as after:
        for text in tokenizer_files.hard_texts():
            assert after.tokenizer.encode(text) == before.tokenizer.encode(text)
        assert after.tokenizer.stop_ids == before.tokenizer.stop_ids
        messages = [{"role": "user", "content": "hi"}]
        assert after.chat_template.render(messages) == before.chat_template.render(messages)
        tokens = before.tokenizer.encode("the thin man")
        np.testing.assert_allclose(after.forward(tokens), before.forward(tokens), atol=1e-4)


def pieces_tokenizer(folder: Path) -> None:
    """SentencePiece's kind, as transformers writes that of Llama 2."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "a", "b", "c", "\u2581a", "ab", "\u2581ab", "abc", "bc"]
    merges = [("\u2581", "a"), ("b", "c"), ("a", "b"), ("\u2581a", "b"), ("ab", "c"), ("\u2581", "ab")]
    ids = {word: i for i, word in enumerate(words)}
    made = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words[:3]])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def test_sentence_pieces_of_a_folder(tmp_path):
    pieces_tokenizer(tmp_path)
    keys = {key.name.removeprefix("tokenizer.ggml."): key.value for key in tokenizer_keys(tmp_path, 300)}
    assert keys["model"] == "llama" and keys["add_space_prefix"] and keys["add_bos_token"]
    assert len(keys["tokens"]) == len(keys["scores"]) == len(keys["token_type"]) == 300
    scores = dict(zip(keys["tokens"], keys["scores"], strict=True))
    assert scores["\u2581a"] > scores["bc"] > scores["ab"] > scores["abc"]


def test_tokenizers_that_are_refused(tmp_path):
    with_tokenizer("llama2", tmp_path)
    with pytest.raises(ModelFileError, match="the vocabulary has 70 tokens, expected at most the model's 60"):
        tokenizer_keys(tmp_path, 60)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("e", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="pre_tokenizer splits texts in an unknown way"):
        tokenizer_keys(tmp_path, 80)


def test_all_tokens_that_end_a_text_are_stored(tmp_path):
    """A folder of GLM lists three: the end of a text, of a turn, and of a message with calls."""
    folder = speaking_model.write(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    made = quantize(folder, tmp_path / "model.gguf", "f16")
    with LayerWiseInferenceEngine(folder) as before, LayerWiseInferenceEngine(made.path) as after:
        assert after.tokenizer.stop_ids == before.tokenizer.stop_ids >= {5, 7}
