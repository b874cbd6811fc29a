"""How gpt2-style tokenizers split text before they merge: patterns, by the name in `tokenizer.ggml.pre`. Each
pattern is applied to the pieces of the one before. Text between matches is a piece too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str, letters: str = r"\p{L}", line_ends: str = r"[\r\n]*") -> str:
    """The pattern of GPT-4. Its variants differ in which digits stay together, in what counts as a letter,
    and in the line ends that stay with the signs before them.
    """
    words, signs = rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+", rf" ?[^\s{letters}\p{{N}}]+{line_ends}"
    return rf"{_SUFFIXES}|{words}|{digits}|{signs}|{_SPACES}"


def _gpt4o(digits: str, suffixes: str = "", but: str = "", line_ends: str = r"[\r\n/]*") -> str:
    """The pattern of GPT-4o, which splits words before capitals. `but`: letters that it excludes."""
    start, both = r"[^\r\n\p{L}\p{N}]?", rf"\p{{Lm}}\p{{Lo}}\p{{M}}{but}"
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}{both}]", rf"[\p{{Ll}}{both}]"
    words = rf"{start}{upper}*{lower}+{suffixes}|{start}{upper}+{lower}*{suffixes}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{line_ends}|{_SPACES}"


_DEEPSEEK_V3 = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
# The letters with case of DeepSeek's first vocabulary: those of an old Unicode, without styled ones.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_KIMI_K2 = r"\p{Han}+|" + _gpt4o(r"\p{N}{1,3}", f"{_SUFFIXES}?", r"&&[^\p{Han}]", r"[\r\n]*")


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns. `whole_pieces`: a piece that is a token is not merged from parts. `add_bos`: a text starts
    with the bos token unless the file says otherwise. `strip_before`: the token before which white space is
    dropped.
    """

    patterns: tuple[str, ...]
    whole_pieces: bool = False
    add_bos: bool = False
    strip_before: str | None = None

    def build(self) -> Any:
        """The pre-tokenizer of the package `tokenizers`. It writes the bytes of each piece as letters."""
        from tokenizers import Regex, pre_tokenizers

        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        bytes_as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, bytes_as_letters])


_BY_NAMES = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 mpt olmo exaone4 mellum a.x-4.0 granite-docling trillion gigachat": PreTokenizer((_GPT2,)),
    "modern-bert": PreTokenizer((_GPT2,), strip_before="[MASK]"),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe llama3 llama-v3 lfm2 falcon3 falcon-h1 pixtral midm-2.0": PreTokenizer(
        (_gpt4(r"\p{N}{1,3}"),), whole_pieces=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_gpt4(r"\p{N}{1,3}"),)),
    "glm4 glm5": PreTokenizer((_gpt4(r"\p{N}{1,3}"),), whole_pieces=True),
    "qwen2 deepseek-r1-qwen hunyuan megrez stablelm2 solar-open grok-2 kormo f2llmv2": PreTokenizer(
        (_gpt4(r"\p{N}"),)
    ),
    "qwen35": PreTokenizer((_gpt4(r"\p{N}", letters=r"\p{L}\p{M}"),)),
    "seed-coder": PreTokenizer((_gpt4(r"\p{N}", line_ends=""),)),
    "tekken": PreTokenizer((_gpt4o(r"\p{N}"),), whole_pieces=True, add_bos=True),
    "gpt-4o llama4 minimax-m2 kanana2": PreTokenizer((_gpt4o(r"\p{N}{1,3}", f"{_SUFFIXES}?"),)),
    "granite-embed-multi-97m": PreTokenizer((_gpt4o(r"\p{N}{1,3}", f"{_SUFFIXES}?"),), whole_pieces=True),
    "kimi-k2": PreTokenizer((_KIMI_K2,)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3)
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "viking": PreTokenizer((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")),
}
PRE_TOKENIZERS = {name: kind for names, kind in _BY_NAMES.items() for name in names.split()}
