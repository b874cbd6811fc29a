"""Token ids against llama.cpp's (made by tests/references/llama_cpp_tokens.py), decoding, chat templates."""

import json
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from airllm.convert.tokenizer_to_gguf import PROBES, cut, tokenizer_keys
from airllm.files import ModelFileError
from airllm.text import sandbox
from airllm.text.chat_template import ChatTemplate, ChatTemplateError, open_chat_template
from airllm.text.gguf_tokenizer import gguf_tokenizer
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.pre_tokenizers import PRE_TOKENIZERS
from airllm.text.tokenizer import Tokenizer
from airllm.text.vocabulary import Kind, Vocabulary
from tests.support import tokenizer_files
from tests.support.makers_patterns import DIGITS, PATTERNS

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


def change_keys(name: str, **keys) -> dict:
    found = tokenizer_files.metadata(name)
    for key, value in keys.items():
        found[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del found[f"tokenizer.ggml.{key}"]
    return found


@pytest.mark.parametrize(
    ("keys", "message"),
    (
        (
            {"model": "t5"},
            "key tokenizer.ggml.model has value 't5', expected one of bert, gemma4, gpt2, llama",
        ),
        ({"model": "gemma4"}, "key tokenizer.ggml.merges is missing, expected a list"),
        (
            {"model": "gemma4", "merges": ["q zz"], "tokens": ["<0x00>"], "token_type": np.array([6])},
            "tokens lacks <0x01>, .*expected a token for each byte",
        ),
        ({"model": None}, "key tokenizer.ggml.model is missing, expected a str"),
        (
            {"model": "gpt2", "pre": "cyrillic"},
            "key tokenizer.ggml.pre has value 'cyrillic', expected one of de",
        ),
        ({"model": "gpt2"}, "key tokenizer.ggml.merges is missing, expected a list"),
        ({"model": "gpt2", "merges": ["ab"]}, "merges has 'ab' as item 0, expected two pieces"),
        ({"model": "gpt2", "merges": ["q zz"]}, "merges cannot be used .*expected merges of tokens"),
        ({"tokens": 3}, "key tokenizer.ggml.tokens is a int, expected a list"),
        ({"tokens": []}, "key tokenizer.ggml.tokens is empty, expected strings"),
        ({"scores": np.zeros(3)}, "scores has 3 items, expected 9[0-9]+, one for each token"),
        ({"scores": None}, "scores is missing, expected a ndarray"),
        ({"bos_token_id": 1 << 20}, "bos_token_id has value 1048576, expected 0 to 9"),
        ({"eos_token_id": "x"}, "eos_token_id is a str, expected a int"),
        ({"add_bos_token": 1}, "add_bos_token is a int, expected a bool"),
        ({"token_type": np.full(954, 6)}, "tokens has '<unk>' as byte token 0, expected a text like <0x0A>"),
    ),
)
def test_broken_metadata_says_where(keys, message):
    if "token_type" in keys and "tokens" not in keys:
        keys = {"token_type": np.full(len(tokenizer_files.metadata(PIECES)["tokenizer.ggml.tokens"]), 6)}
    with pytest.raises(ModelFileError, match=f"model.gguf: .*{message}"):
        gguf_tokenizer(HERE, change_keys(PIECES, **keys))


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


@pytest.mark.parametrize(
    ("files", "message"),
    (
        ({"tokenizer.json": "{"}, "tokenizer.json is not JSON"),
        ({"tokenizer.json": "{}"}, "tokenizer.json: the tokenizer cannot be used"),
        (
            {"tokenizer_config.json": '{"bos_token": "nobody"}'},
            "bos_token is 'nobody', expected a token of tok",
        ),
        ({"tokenizer_config.json": '{"eos_token": 7}'}, "tokenizer_config.json: eos_token is 7, expected"),
        (
            {"generation_config.json": '{"eos_token_id": [-1]}'},
            "eos_token_id has -1, expected ids from 0 to 1",
        ),
    ),
)
def test_a_broken_folder_says_where(tmp_path, files, message):
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    whole.decoder = decoders.ByteLevel()
    whole.save(str(tmp_path / "tokenizer.json"))
    open_tokenizer(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=message):
        open_tokenizer(tmp_path)


def bytes_tokenizer(folder: Path, change: Callable[[dict], object]) -> None:
    """A tokenizer.json that says something else after `change`."""
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    whole.decoder = decoders.ByteLevel()
    description = json.loads(whole.to_str())
    change(description)
    (folder / "tokenizer.json").write_text(json.dumps(description))


@pytest.mark.parametrize("largest", (100_000, (1 << 32) - 1))
def test_a_large_id_in_a_small_file_takes_no_memory(tmp_path, largest):
    bytes_tokenizer(tmp_path, lambda whole: whole["model"]["vocab"].update(z=largest))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=f"has a token with id {largest}, expected at most .* bytes"):
            open_tokenizer(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_gap_in_the_ids_is_nothing_wrong(tmp_path):
    bytes_tokenizer(tmp_path, lambda whole: whole["model"]["vocab"].update(z=99))
    tokenizer = open_tokenizer(tmp_path)
    assert len(tokenizer) == 100 and tokenizer.decode(tokenizer.encode("abz")) == "abz"


def test_a_panic_of_the_package_is_an_error_of_the_file(tmp_path):
    """A prefix that is longer than what it is a prefix of: the Rust code slices beyond the text."""
    bytes_tokenizer(tmp_path, lambda whole: whole["model"].update(continuing_subword_prefix="abcdef"))
    with pytest.raises(ModelFileError, match=r"tokenizer.json: the tokenizer cannot be used \(.*range"):
        open_tokenizer(tmp_path)


def test_a_text_that_the_file_makes_impossible_is_an_error_of_the_file(tmp_path):
    def words(whole):
        whole["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[nothing]"}

    bytes_tokenizer(tmp_path, words)
    tokenizer = open_tokenizer(tmp_path)
    with pytest.raises(ModelFileError, match="tokenizer.json: the tokenizer cannot be used .*Missing"):
        tokenizer.encode("b")


def test_an_interrupt_within_the_package_stays_one(tmp_path, monkeypatch):
    bytes_tokenizer(tmp_path, dict)
    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_file=interrupted))
    with pytest.raises(KeyboardInterrupt):
        open_tokenizer(tmp_path)


def interrupted(path: str) -> None:
    raise KeyboardInterrupt


def test_a_folder_with_another_decoder_is_refused(tmp_path):
    whole = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    whole.decoder = decoders.CTC()
    whole.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFileError, match="decoder is of type CTC, expected ByteLevel, ByteFallback"):
        open_tokenizer(tmp_path)


# ---------------------------------------------------------------------------------------------- chat

HI = [{"role": "user", "content": "Hi <b>"}]


def template(source: str, **names: str) -> ChatTemplate:
    return ChatTemplate(source, HERE, **names)


def test_the_real_template(real_file, smollm):
    chat = open_chat_template(real_file)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.render(HI) == text
    assert chat.render(HI, add_generation_prompt=False) == text.removesuffix("<|im_start|>assistant\n")
    assert smollm.encode(text).count(1) == 3
    assert open_chat_template(real_file, "tool_use") is None


@pytest.mark.parametrize(
    ("source", "expected"),
    (
        ("{{ messages[0].content | tojson }}", '"Hi <b>"'),
        ("{{ {'a': 'é'} | tojson(indent=1) }}", '{\n "a": "é"\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("{% generation %}x{{ messages[0].role }}{% endgeneration %}", "xuser"),
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{% if tools is none %}none{% endif %}", "none"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ think }}", "no"),
    ),
)  # fmt: skip
def test_what_templates_use(source, expected):
    assert template(source, bos_token="<s>", eos_token="</s>").render(HI, think="no") == expected


@pytest.mark.parametrize(
    "source",
    (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ messages[0].update(a=1) }}",
        "{% for i in range(10**7) %}{% endfor %}",
    ),
)
def test_a_template_cannot_reach_out(source):
    with pytest.raises(ChatTemplateError, match="model.gguf: the chat template fails on the messages: "):
        template(source).render(HI)


@pytest.mark.parametrize(
    "source",
    (
        "{% for i in range(9) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
        "{% for i in range(9) if i % 2 %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }}{% endfor %}",
        "{% for i in [] %}{{ i }}{% else %}none{% endfor %}",
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.revindex }}{% endfor %}",
        "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }};{% endfor %}",
        "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(2) %}in{% endcall %}",
        "{{ 3 * 4 }}{{ 'ab' * 2 }}{{ 2 * 'ab' }}{{ 2 ** 10 }}{{ 1.5 ** 2 }}{{ [0] * 3 }}",
        "{{ 1000000000 * 1.5 }}{{ 1.5 * 1000000000 }}{{ 1700000000 + 0.5 }}{{ 10 % 4 }}{{ '%d%%' % 5 }}",
    ),
)
def test_counting_changes_nothing(source):
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).from_string(source)
    assert template(source).render(HI) == plain.render(messages=HI) != ""


LOOP, END = "{% for a in range(99999) %}", "{% endfor %}"


@pytest.mark.parametrize(
    "source",
    (
        LOOP * 2 + END * 2,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in [range(9)] recursive %}{{ loop([a] * 9) if loop.depth < 40 }}{% endfor %}",
        LOOP + "x" * 9999 + END,
        "{{ lipsum(n=1000000) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'abc' * 99999999 }}",
    ),
)
def test_a_template_ends(source, monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_STEPS", 20_000)  # of what takes seconds, the first part
    with pytest.raises(
        ChatTemplateError, match="model.gguf: the chat template (fails on|does not end)"
    ) as error:
        template(source).render(HI)
    assert "\n" not in str(error.value)


def test_what_may_be_done_is_of_each_rendering(monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_STEPS", 100)
    made = template("{% for i in range(60) %}{% endfor %}{{ messages | length }}")
    assert [made.render(HI) for _ in range(5)] == ["1"] * 5


def test_texts_that_no_tokenizer_takes_are_refused():
    half = [{"role": "user", "content": "a\udcff"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a\udcff"}]}]
    for messages in (half, parts):
        with pytest.raises(ValueError, match=r"messages\[0\]: .* has '.udcff' as character 1, expected Uni"):
            template("{{ messages[0].content }}").render(messages)
    with pytest.raises(ChatTemplateError, match="fails on the messages: UnicodeEncodeError: .*surrogates"):
        template(r"{{ '\udcff' }}").render(HI)


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
JOINED = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"
PRINTED = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
TAKING = (
    "{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}>{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    (
        (JOINED, None, "<>"),
        (PRINTED, None, "<>"),
        (JOINED, PARTS, "<one\ntwo>"),
        (PRINTED, PARTS, "<one\ntwo>"),
        (TAKING, PARTS, "<onetwo>"),
        (JOINED, [], "<>"),
        (PRINTED, {"a": 1}, "<{'a': 1}>"),
        (PRINTED, [1], "<[1]>"),
    ),
)
def test_contents_as_clients_of_openai_write_them(source, content, expected):
    messages = [{"role": "user", "content": content}]
    assert template(source).render(messages) == expected
    assert messages == [{"role": "user", "content": content}]


def test_calls_of_tools_come_without_a_content():
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    asks = (
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert template(asks).render([{**call, "content": None}]) == "f"
    adds = "{% for m in messages %}{{ m.content + m.tool_calls[0].function.name }}{% endfor %}"
    for message in (call, {**call, "content": None}):
        assert template(adds).render([message]) == "f"


@pytest.mark.parametrize(
    ("part", "message"),
    (
        ({"type": "image_url", "image_url": {"url": "x"}}, r"part of type 'image_url', expected 'text'"),
        ({"type": "text"}, "part with text of type NoneType, expected a str"),
    ),
)
def test_parts_that_are_no_text_are_refused(part, message):
    with pytest.raises(ValueError, match=rf"chat: messages\[1\] has a {message}"):
        template(TAKING).render([*HI, {"role": "user", "content": [*PARTS, part]}])


@pytest.mark.parametrize(
    "source",
    (
        "{% for a in [1] %}" * 21 + END * 21,
        "{% if a %}" * 100 + "{% endif %}" * 100,
        "{% break %}",
        "{{ " + "1" * 5000 + " }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ),
)
def test_what_cannot_be_compiled_is_no_template(source):
    with pytest.raises(ModelFileError, match="gguf: the chat template is not a Jinja template") as error:
        template(source)
    assert "\n" not in str(error.value)


def test_errors_of_templates():
    with pytest.raises(ChatTemplateError, match="model.gguf: the chat template rejects the messages: roles!"):
        template("{{ raise_exception('roles!') }}").render(HI)
    with pytest.raises(ChatTemplateError, match="fails on the messages: UndefinedError: "):
        template("{{ messages[4].content }}").render(HI)
    with pytest.raises(ModelFileError, match=r"gguf: the chat template, line 2, is not a Jinja template"):
        template("a\n{% if %}")
    with pytest.raises(TypeError, match="chat: messages has type str, expected a list of dicts"):
        template("").render("Hi")
    with pytest.raises(TypeError, match=r"chat: messages\[0\] has type str, expected a dict"):
        template("").render(["Hi"])
    with pytest.raises(ValueError, match=r"chat: messages\[0\] has role None, expected a str"):
        template("").render([{"content": "Hi"}])


def test_templates_of_folders(tmp_path):
    assert open_chat_template(tmp_path) is None
    config = {"eos_token": {"content": "</s>"}, "chat_template": "one{{ eos_token }}"}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(config))
    assert open_chat_template(tmp_path).render(HI) == "one</s>"
    both = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]
    path.write_text(json.dumps({**config, "chat_template": both}))
    assert open_chat_template(tmp_path).render(HI) == "two"
    assert open_chat_template(tmp_path, "tool_use").render(HI) == "three"
    assert open_chat_template(tmp_path, "rag") is None
    (tmp_path / "chat_template.jinja").write_text("four{{ eos_token }}")
    assert open_chat_template(tmp_path).render(HI) == "four</s>"
    path.write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelFileError, match="tokenizer_config.json: chat_template holds .*expected a name"):
        open_chat_template(tmp_path)
