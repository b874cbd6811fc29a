"""Small tokenizers of the models of embeddings, with the parts that their makers' files have, and GGUF files
of them as the package `gguf` writes those.

Vocabularies are trained here on the hard texts. Normalizers, pre-tokenizers, added tokens and what stands
around a text are those of bert-base-uncased (also nomic-bert's), ModernBERT, EmbeddingGemma and
Qwen3-Embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)  # fmt: skip

from airllm.text.vocabulary import SPACE, is_byte
from tests.support.models.makers_patterns import HUNYUAN
from tests.support.models.tokenizer_files import hard_texts

# Texts on which these differ: runs of spaces, tabs and line ends, added tokens, letters with marks.
MORE_TEXTS = (
    *(" " * count for count in (2, 5, 24, 25, 31, 32, 64)),
    *("\n" * count for count in (2, 5, 31, 32)), *("\t" * count for count in (2, 5, 31)),
    "x" + " " * 25 + "y", "def f():\n        return 1  # eight\n\t\tx", "trailing   ", "   leading",
    "cafe\u0301 vs café", "A\u030a ring vs Å", "\u1e9b\u0323", "ﬀ ﬁ ﬂ ①", "İstanbul ǅ ẞ", "e\u0301\u0327",
    "x [MASK] y", "x  [MASK]", "[CLS] a [SEP]", "a|||EMAIL_ADDRESS|||b", "[unused1] <unused1>", "[PAD][UNK]",
    "<table><td>x</td></table>", "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<bos>a<eos>",
    "<tool_call>\n{}", "<0x0A>", "𝒳𝔘 \U000e0041", "\x00\x01\x7f", "\u00a0\u2003x\u3000y", "a\r\nb\r\r\n",
    "task: search result | query: what?", "title: none | text: a  b",
)  # fmt: skip
ROWS = 2048  # of the models


def texts() -> list[str]:
    return [*hard_texts(), *MORE_TEXTS]


def bert(folder: Path) -> Tokenizer:
    special = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    whole = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    whole.normalizer = normalizers.BertNormalizer(lowercase=True)
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    whole.train_from_iterator([each for each in hard_texts() if SPACE not in each], trainer)
    _close(whole, "[CLS] $A [SEP]")
    names = {
        name: f"[{name[:-6].upper()}]"
        for name in ("cls_token", "sep_token", "unk_token", "mask_token", "pad_token")
    }
    return _save(whole, folder, names)


def modernbert(folder: Path) -> Tokenizer:
    """Runs of spaces are added tokens of the normalized text, longest first."""
    whole = _byte_pairs(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    runs = [" " * count for count in range(24, 1, -1)]
    names = ["|||EMAIL_ADDRESS|||", "|||PHONE_NUMBER|||"]
    whole.add_tokens([AddedToken(each, normalized=True) for each in ("|||IP_ADDRESS|||", *runs, *names)])
    special = ["<|padding|>", "<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    whole.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    whole.add_special_tokens([AddedToken("[MASK]", normalized=False, lstrip=True)])
    whole.add_tokens([AddedToken(f"[unused{i}]", normalized=True) for i in range(3)])
    _close(whole, "[CLS] $A [SEP]")
    return _save(whole, folder, {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})


def qwen3(folder: Path) -> Tokenizer:
    """What closes a text is not what ends a turn."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(HUNYUAN), "isolated")  # which is Qwen's
    whole = _byte_pairs(pre_tokenizers.Sequence([split, letters]))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    whole.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    whole.add_tokens([AddedToken(each, normalized=False) for each in ("<tool_call>", "</tool_call>")])
    _close(whole, "$A <|endoftext|>", processors.ByteLevel(trim_offsets=False))
    return _save(whole, folder, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})


def gemma(folder: Path) -> Tokenizer:
    """SentencePiece's pieces, all of whose cuts are merges, and the token of an image, for which a model of
    text has no row.
    """
    runs = [each * count for each in ("\n", SPACE, "\t") for count in range(2, 32)]
    tags = ["<table>", "</table>", "<td>", "</td>"]
    head = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused0>", "<unused1>"]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(hard_texts(), trainers.BpeTrainer(vocab_size=900, show_progress=False))
    pieces = sorted(trained.get_vocab().items(), key=lambda item: (len(item[0]) == 1, item[1]))
    known = [each for each, _ in pieces if all(letter < "\u3000" for letter in each)]  # others become bytes
    words = [*head, *(f"<0x{byte:02X}>" for byte in range(256)), *runs, *tags, *known]
    words += [f"<unused{i}>" for i in range(ROWS)]
    ids = {word: i for i, word in enumerate(list(dict.fromkeys(words))[:ROWS])}
    longest_first = sorted(
        (cut for run in runs for cut in _cuts(run)), key=lambda cut: [-len(each) for each in cut]
    )
    cuts = [*longest_first, *(cut for word in known for cut in _cuts(word))]
    merges = [cut for cut in dict.fromkeys(cuts) if cut[0] in ids and cut[1] in ids]
    model = models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    whole = Tokenizer(model)
    whole.normalizer = normalizers.Replace(" ", SPACE)
    whole.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    whole.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    whole.add_special_tokens([AddedToken(each, normalized=False) for each in head[:5]])
    whole.add_tokens([AddedToken(each, normalized=False) for each in (*head[5:], *runs, *tags)])
    _close(whole, "<bos> $A <eos>")
    description = json.loads(whole.to_str())
    beyond = {"id": ROWS, "content": "<image_soft_token>", "special": True, "normalized": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    description["added_tokens"].append(beyond | plain)
    return _save(
        Tokenizer.from_str(json.dumps(description)),
        folder,
        {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    )


FAMILIES: dict[str, Callable[[Path], Tokenizer]] = {
    "nomic-bert": bert, "modern-bert": modernbert, "gemma-embedding": gemma, "qwen3": qwen3,
}  # fmt: skip


def write_gguf(name: str, folder: Path, path: Path) -> Path:
    """A GGUF file with the folder's tokenizer and nothing else, by gguf's own reader of folders."""
    description = json.loads((folder / "tokenizer.json").read_text())
    ids = {**description["model"]["vocab"], **{a["content"]: a["id"] for a in description["added_tokens"]}}
    added = {each["id"]: each["special"] for each in description["added_tokens"]}
    words = {i: text for text, i in ids.items() if i < ROWS}
    tokens, kinds = [], []
    for i in range(ROWS):
        text, special = words.get(i, f"[PAD{i}]"), added.get(i)
        kind = gguf.TokenType.UNUSED if i not in words else gguf.TokenType.NORMAL
        if special is not None:
            kind = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
        elif name == "gemma-embedding" and is_byte(text):
            kind = gguf.TokenType.BYTE
        tokens.append(_text_in_gguf(name, text, special))
        kinds.append(kind)
    writer = gguf.GGUFWriter(path, name)
    model = {"nomic-bert": "bert", "gemma-embedding": "llama"}.get(name, "gpt2")
    writer.add_tokenizer_model(model)
    if model == "gpt2":
        writer.add_tokenizer_pre({"qwen3": "qwen2"}.get(name, name))
    elif model == "llama":
        writer.add_token_scores(list(_scores(description["model"]["merges"], tokens)))
        writer.add_add_space_prefix(False)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    gguf.SpecialVocab(folder, load_merges=model == "gpt2", n_vocab=ROWS).add_to_gguf(writer, quiet=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _text_in_gguf(name: str, text: str, special: bool | None) -> str:
    if name == "nomic-bert" and special is None:
        return text[2:] if text.startswith("##") else SPACE + text
    return text.replace(SPACE, " ") if name == "gemma-embedding" and special is False else text


def _scores(merges: Iterable[list[str]], tokens: list[str]) -> Iterable[float]:
    rank: dict[str, int] = {}
    for i, pair in enumerate(merges):
        rank.setdefault("".join(pair), i)
    return (-float(rank.get(text, len(rank))) for text in tokens)


def _byte_pairs(pre_tokenizer: Any) -> Tokenizer:
    whole = Tokenizer(models.BPE())
    whole.normalizer, whole.pre_tokenizer = normalizers.NFC(), pre_tokenizer
    whole.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    whole.train_from_iterator(hard_texts(), trainer)
    return whole


def _close(whole: Tokenizer, single: str, before: Any = None) -> None:
    """Put what the template names around a text."""
    named = [(each, whole.token_to_id(each)) for each in single.split() if each != "$A"]
    template = processors.TemplateProcessing(single=single, special_tokens=named)
    whole.post_processor = processors.Sequence([before, template]) if before else template


def _cuts(word: str) -> Iterable[tuple[str, str]]:
    return ((word[:at], word[at:]) for at in range(1, len(word)))


def _save(whole: Tokenizer, folder: Path, names: dict[str, str]) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    whole.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return whole
