"""Token ids against llama.cpp's (made by tests/references/llama_cpp_tokens.py), and decoding."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from airllm.convert.tokenizer_to_gguf import PROBES, cut, tokenizer_keys
from airllm.files import ModelFileError
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.pre_tokenizers import PRE_TOKENIZERS
from airllm.text.tokenizer import Tokenizer
from airllm.text.vocabulary import Kind, Vocabulary
from tests.support.models import tokenizer_files
from tests.support.models.makers_patterns import DIGITS, PATTERNS

HERE = Path("model.gguf")
TEXTS = tokenizer_files.hard_texts()
REFERENCE = tokenizer_files.reference()
CUTS = tokenizer_files.pieces()
PIECES = "sentence pieces"


@pytest.fixture(scope="module")
def smollm(real_file) -> Tokenizer:
    return open_tokenizer(real_file)


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return gguf_tokenizer(HERE, tokenizer_files.metadata(PIECES))


def folder_like_smollm(folder: Path) -> Path:
    """The tokenizer of SmolLM2's GGUF file as Hugging Face stores it."""
    found = tokenizer_files.metadata("smollm")
    texts = found["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in found["tokenizer.ggml.merges"]]
    whole = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    whole.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    whole.decoder = decoders.ByteLevel()
    control = zip(texts, found["tokenizer.ggml.token_type"], strict=True)
    whole.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text, kind in control if kind == 3]
    )
    whole.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": "{{ eos_token }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    return folder


@pytest.mark.parametrize("name", tokenizer_files.NAMES)
def test_ids_equal_llama_cpp(name, request):
    if name in tokenizer_files.BYTE_PAIRS:
        request.getfixturevalue("real_file")
    tokenizer = gguf_tokenizer(HERE, tokenizer_files.metadata(name))
    assert len(REFERENCE[name]) == len(TEXTS)
    for text, expected in zip(TEXTS, REFERENCE[name], strict=True):
        found = [tokenizer.encode(text, special, add_bos=False) for special in (True, False)]
        assert found == [expected[0], expected[-1]], text


@pytest.mark.parametrize("name", CUTS)
def test_texts_are_cut_as_the_makers_do(name):
    pre_tokenizer = PRE_TOKENIZERS[name].build()
    for text, expected in zip(TEXTS, CUTS[name], strict=True):
        assert [end for _, (_, end) in pre_tokenizer.pre_tokenize_str(text)] == expected, text


def test_texts_tell_the_pre_tokenizers_apart():
    """Those of the conversion of folders, so that no folder gets another's name. A bos token is a key."""
    kinds = list(dict.fromkeys(replace(kind, add_bos=False) for kind in PRE_TOKENIZERS.values()))
    found = [
        (kind.whole_pieces, kind.strip_before, *(str(cut(kind.build(), text)) for text in PROBES))
        for kind in kinds
    ]
    assert len(set(found)) == len(kinds)


def test_a_folder_gives_the_same_ids(real_file, smollm, tmp_path):
    tokenizer = open_tokenizer(folder_like_smollm(tmp_path))
    for text, expected in zip(TEXTS, REFERENCE["smollm"], strict=True):
        found = [tokenizer.encode(text, special) for special in (True, False)]
        assert found == [expected[0], expected[-1]], text
        assert tokenizer.decode(found[0], special=True) == text
        assert tokenizer.decode(found[0]) == smollm.decode(found[0])
    assert len(tokenizer) == len(smollm) == 49152
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.stop_ids == {0, 2, 5}


@pytest.mark.parametrize(
    ("name", "behaviour"),
    (("dbrx", "isolated"), ("llama-bpe", "isolated"), ("gpt-4o", "removed"), ("tekken", "isolated"),
     ("qwen35", "isolated"), ("seed-coder", "removed")),
)  # fmt: skip
def test_a_folder_of_each_family_gives_the_same_ids(name, behaviour, real_file, tmp_path):
    """Their tokenizer.json has one pattern, cut out or what is not cut out removed, and whole pieces."""
    folder_like_smollm(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = tokenizers.Tokenizer.from_file(str(path))
    kind = PRE_TOKENIZERS[name]
    split = pre_tokenizers.Split(tokenizers.Regex(*kind.patterns), behaviour, invert=behaviour == "removed")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)
    whole.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    whole.model.ignore_merges = kind.whole_pieces
    whole.post_processor = processors.ByteLevel(trim_offsets=False)
    whole.save(str(path))
    tokenizer = open_tokenizer(tmp_path)
    for text, expected in zip(TEXTS, REFERENCE[name], strict=True):
        found = [tokenizer.encode(text, special) for special in (True, False)]
        assert found == [expected[0], expected[-1]], text
        assert tokenizer.decode(found[0], special=True) == text


@pytest.mark.parametrize("name", (*PATTERNS, *DIGITS))
def test_ids_equal_those_of_the_makers_pattern(name, real_file, tmp_path):
    """By the package tokenizers, with SmolLM2's vocabulary: from a folder, and by the name in GGUF files."""
    folder_like_smollm(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = tokenizers.Tokenizer.from_file(str(path))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in DIGITS)
    digits = pre_tokenizers.Digits(individual_digits=True)
    first = digits if name in DIGITS else pre_tokenizers.Split(tokenizers.Regex(PATTERNS[name]), "isolated")
    whole.pre_tokenizer = pre_tokenizers.Sequence([first, letters])
    whole.save(str(path))
    folder = open_tokenizer(tmp_path)
    gguf = gguf_tokenizer(HERE, tokenizer_files.metadata("smollm") | {"tokenizer.ggml.pre": name})
    for text in TEXTS:
        expected = whole.encode(text, add_special_tokens=False).ids
        assert folder.encode(text, add_bos=False) == gguf.encode(text, add_bos=False) == expected, text


GLM: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "glm4",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|endoftext|>", "<|user|>", "<|observation|>", "aa"],
    "tokenizer.ggml.token_type": np.array([1, 1, 1, 3, 3, 3, 1], np.int32),
    "tokenizer.ggml.merges": ["a a"],
    "tokenizer.ggml.eos_token_id": 3,
    "tokenizer.ggml.eot_token_id": 4,
    "tokenizer.ggml.eom_token_id": 5,
}


@pytest.mark.parametrize(("name", "ids"), (("glm4", [2]), ("glm5", [2]), ("chatglm-bpe", [0, 1])))
def test_glm_takes_pieces_that_are_tokens_whole(name, ids):
    """As llama.cpp does, and not by its older name."""
    assert gguf_tokenizer(HERE, GLM | {"tokenizer.ggml.pre": name}).encode("ab") == ids


def test_the_token_that_ends_a_message_with_calls_ends_a_text():
    assert gguf_tokenizer(HERE, GLM).stop_ids == {3, 4, 5}
    without = {key: value for key, value in GLM.items() if "eom" not in key}
    assert gguf_tokenizer(HERE, without).stop_ids == {3, 4}
    with pytest.raises(ModelFileError, match="eom_token_id has value 7, expected 0 to 6"):
        gguf_tokenizer(HERE, GLM | {"tokenizer.ggml.eom_token_id": 7})


def ends_of(*texts: str) -> set[str]:
    """Those of a vocabulary with these control tokens that end a text."""
    vocabulary = Vocabulary(texts, [Kind.CONTROL] * len(texts), letters=True)
    return {texts[i] for i in vocabulary.ends()}


@pytest.mark.parametrize("end", (
    "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<|tool_response>", "<eos>",
    "[e~[", "[EOT]", "[EOS]", "<end_of_utterance>", "<|im_end|>", "<|eot_id|>", "<|eot|>",
    "<|eom|>",
))  # fmt: skip
def test_what_ends_a_text(end):
    assert ends_of("<|start|>", end, "<s>") == {end}


@pytest.mark.parametrize("pair", (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>")))
def test_a_part_of_a_turn_ends_no_text(pair):
    """gpt-oss and Solar end their thoughts by <|end|>, before the answer."""
    assert ends_of("<|end|>", *pair) == set(pair)
    assert ends_of("<|end|>", pair[0]) == {"<|end|>", pair[0]}


def test_the_real_tokenizer(smollm):
    assert smollm.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert (smollm.bos_id, smollm.eos_id, smollm.eot_id, smollm.add_bos) == (1, 2, None, False)
    assert smollm.stop_ids == {0, 2} and smollm.id_of("<|im_end|>") == 2 and smollm.id_of("no such") is None
    assert smollm.encode("Hi", add_bos=True) == [1, *smollm.encode("Hi")]


def test_bos_as_the_model_wants_it(pieces):
    assert pieces.encode("Hi")[0] == pieces.bos_id == 1 and pieces.encode("", add_bos=None) == [1]
    assert 1 not in pieces.encode("Hi", add_bos=False)


def gemma4_folder(folder: Path) -> Path:
    """The tokenizer of `tokenizer_files.GEMMA4` as Hugging Face stores Gemma 4's."""
    found = tokenizer_files.metadata(tokenizer_files.GEMMA4)
    texts, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ", 1)) for merge in found["tokenizer.ggml.merges"]]
    ids = {text: i for i, text in enumerate(texts)}
    merges.append(("\n\n", "\n\n"))  # GGUF files need none for line ends
    model = models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    whole = tokenizers.Tokenizer(model)
    whole.normalizer = normalizers.Replace(" ", "▁")
    whole.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    whole.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    added = {kind: [t for t, k in zip(texts, kinds, strict=True) if k == kind] for kind in (2, 3, 4)}
    # the end of a tool's result ends a text, so it is special in a folder
    special = [*added[2], *added[3], "<|tool_response>"]
    whole.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    plain = [text for text in added[4] if text not in special]
    whole.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    whole.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    whole.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<eos>"}')
    return folder


def test_a_folder_of_gemma4_gives_the_same_ids(tmp_path):
    tokenizer = open_tokenizer(gemma4_folder(tmp_path))
    of_file = gguf_tokenizer(HERE, tokenizer_files.metadata(tokenizer_files.GEMMA4))
    for text, expected in zip(TEXTS, REFERENCE[tokenizer_files.GEMMA4], strict=True):
        found = [tokenizer.encode(text, special, add_bos=False) for special in (True, False)]
        assert found == [expected[0], expected[-1]], text
    assert (of_file.bos_id, of_file.eos_id, of_file.add_bos, of_file.stop_ids) == (
        tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.stop_ids,
    )  # fmt: skip


def test_a_folder_of_gemma4_is_converted(tmp_path):
    folder = gemma4_folder(tmp_path)
    keys = {key.name: key.value for key in tokenizer_keys(folder, 1000, line_pieces=True)}
    keys["tokenizer.ggml.token_type"] = np.array(keys["tokenizer.ggml.token_type"])
    converted = gguf_tokenizer(HERE, keys)
    assert keys["tokenizer.ggml.model"] == "gemma4" and len(converted) == 1000
    for text, expected in zip(TEXTS, REFERENCE[tokenizer_files.GEMMA4], strict=True):
        assert converted.encode(text)[1:] == expected[0], text


@pytest.mark.parametrize("name", ("smollm", "llama-bpe", "sentence pieces, no prefix", "gemma4"))
def test_decoding_gives_the_text_back(name, request):
    if name in tokenizer_files.BYTE_PAIRS:
        request.getfixturevalue("real_file")
    tokenizer = gguf_tokenizer(HERE, tokenizer_files.metadata(name))
    for text in TEXTS:
        if name in tokenizer_files.BYTE_PAIRS or "▁" not in text:
            ids = tokenizer.encode(text, add_bos=False)
            assert tokenizer.decode(ids, special=True) == text
            decoder = tokenizer.decoder(special=True)
            assert "".join(map(decoder.add, ids)) + decoder.finish() == text


def test_the_space_before_a_text_goes_again(pieces):
    for text in ("Hello world", " x", "", "漢字🙂"):
        assert pieces.decode(pieces.encode(text)) == text
    ids = pieces.encode("world", add_bos=False)
    decoder = pieces.decoder()
    assert "".join(map(decoder.add, ids)) == " world"  # it goes on from something


def test_control_tokens_are_no_text_unless_asked_for(smollm):
    ids = smollm.encode("a<|im_end|>b")
    assert smollm.decode(ids) == "ab" and smollm.decode(ids, special=True) == "a<|im_end|>b"
    assert 2 not in smollm.encode("a<|im_end|>b", special=False)


@pytest.mark.parametrize("name", ("smollm", PIECES))
def test_incremental_decoding_never_splits_a_character(name, request):
    if name == "smollm":
        request.getfixturevalue("real_file")
    tokenizer = gguf_tokenizer(HERE, tokenizer_files.metadata(name))
    text = "naïve 漢字 🙂👩‍👩‍👧 \U0010ffff ह"
    ids = tokenizer.encode(text, add_bos=False)
    decoder = tokenizer.decoder()
    parts = [decoder.add(token) for token in ids]
    assert "".join(parts).strip() == text and decoder.finish() == ""
    assert "" in parts and not any("\ufffd" in part for part in parts)


def test_what_is_no_utf8_is_shown_as_such(pieces):
    first, other = pieces.id_of("<0xE6>"), pieces.id_of("<0x41>")
    decoder = pieces.decoder()
    assert decoder.add(first) == "" and decoder.add(other) == "\ufffdA"
    assert decoder.add(first) == "" and decoder.finish() == "\ufffd"
    assert decoder.add(other) == "A"  # and begins afresh
    assert pieces.decode([first, other]) == "\ufffdA"


def test_wrong_arguments(pieces):
    with pytest.raises(TypeError, match="encode: text has type bytes, expected a str"):
        pieces.encode(b"x")
    for token in (-1, len(pieces)):
        with pytest.raises(
            ValueError, match=f"decode: ids has value {token}, expected 0 to {len(pieces) - 1}"
        ):
            pieces.decode([token])


def test_several_threads_encode_at_once(real_file, tmp_path):
    tokenizer = open_tokenizer(folder_like_smollm(tmp_path))
    wrong: list[str] = []

    def run(special: bool, which: int) -> None:
        for text, expected in zip(TEXTS, REFERENCE["smollm"], strict=True):
            if tokenizer.encode(text, special) != expected[which]:
                wrong.append(text)

    threads = [threading.Thread(target=run, args=each) for each in ((True, 0), (False, -1)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_long_text_takes_no_long(pieces):
    text = "the quick brown fox 漢字 " * 4000
    assert pieces.decode(pieces.encode(text)) == text


def test_a_folder_with_sentence_pieces(tmp_path):
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
    model = models.BPE(
        vocab={word: i for i, word in enumerate(words)},
        merges=[("h", "i"), ("▁", "hi")],
        byte_fallback=True,
        unk_token="<unk>",
    )
    whole = tokenizers.Tokenizer(model)
    whole.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    whole.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    whole.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    whole.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    whole.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": null}')
    tokenizer = open_tokenizer(tmp_path)
    ids = tokenizer.encode("hi hi🙂")
    assert [tokenizer.piece(token, special=True) for token in ids] == [
        *(b"<s>", b" hi", b" hi"),
        *(bytes([byte]) for byte in "🙂".encode()),
    ]
    assert tokenizer.add_bos and tokenizer.decode(ids) == whole.decode(ids) == "hi hi🙂"
