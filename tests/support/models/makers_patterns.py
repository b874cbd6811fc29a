"""How the makers of models cut texts before they merge, in their own words: of tokenization files and of
tokenizer.json.
"""

_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER_BUT_HAN, _LOWER_BUT_HAN = (each[:-1] + r"&&[^\p{Han}]]" for each in (_UPPER, _LOWER))
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
O200K = (
    rf"{_START}{_UPPER}*{_LOWER}+{_SUFFIXES}?|{_START}{_UPPER}+{_LOWER}*{_SUFFIXES}?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
GLM4 = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}{{1,3}}{_SIGNS}{_SPACES}"  # tokenization_chatglm.py
HUNYUAN = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}{_SIGNS}{_SPACES}"  # tokenization_hy.py
KIMI = (  # tokenization_kimi.py
    rf"[\p{{Han}}]+|{_START}{_UPPER_BUT_HAN}*{_LOWER_BUT_HAN}+{_SUFFIXES}?"
    rf"|{_START}{_UPPER_BUT_HAN}+{_LOWER_BUT_HAN}*{_SUFFIXES}?|\p{{N}}{{1,3}}{_SIGNS}{_SPACES}"
)
SEED = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}"
# A pre-tokenizer's name in GGUF files -> the pattern of its makers.
PATTERNS = {
    "kimi-k2": KIMI,
    "seed-coder": SEED,
    "glm4": GLM4,
    "minimax-m2": O200K,
    "llama4": O200K,  # tokenizer.py of llama-models
    "hunyuan": HUNYUAN,
}
# Those that cut digits apart, and then as GPT-2 does.
DIGITS = ("command-r", "starcoder")
