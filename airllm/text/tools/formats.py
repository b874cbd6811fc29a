"""The forms in which models write tool calls. A chat template tells which one its model has learned."""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass
from typing import Any

# The beginning of a call as JSON, up to its arguments.
_JSON_HEAD = r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_JSON_TAIL = r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?\s*\}'
_ALPHANUMERIC = string.ascii_letters + string.digits
PYTHON_TAG = "<|python_tag|>"
NUMBER = "{n}"


@dataclass(frozen=True)
class ToolFormat:
    """A form of calls: what a grammar writes, and what a reader finds.

    Calls are `first`, then for each call `call`, its name, `middle`, its arguments and `after`; `between`
    calls, or nothing if there can be only one; and `last`. `trigger` begins calls in a text; without one,
    calls are the whole text. `head`, `next` and `tail` are the expressions of a reader: the first call up to
    its arguments, the following one, and what follows the last arguments; `end` is `tail` as plain text
    without spaces. A model may write white space where these have some. NUMBER in `call` or `middle` is the
    number of the call. The group "id" of `head` and `next`, if any, is a call's id. `around_text`: control
    tokens that a model may write around a text that is no call; they are not shown. `spaced`: a space may
    follow a control token. `only_calls`: the template asks for calls and leaves no way to answer by a text.
    """

    name: str
    trigger: str | None
    first: str
    call: str
    middle: str
    after: str
    between: str | None
    last: str
    head: re.Pattern[str]
    next: re.Pattern[str] | None
    tail: re.Pattern[str]
    end: str
    control: tuple[str, ...] = ()  # texts that are control tokens in the vocabularies of these models
    short_ids: bool = False
    around_text: tuple[str, ...] = ()
    spaced: bool = True
    only_calls: bool = False

    def new_id(self) -> str:
        """An id for a call. Some templates accept only ids of nine letters and digits."""
        if self.short_ids:
            return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def write(self, calls: list[tuple[str, str]], first: int = 0) -> str:
        """Calls, as names and arguments in JSON, as a model writes them. `first`: the number of the first."""
        texts = [
            f"{self.call}{name}{self.middle}".replace(NUMBER, str(number)) + arguments + self.after
            for number, (name, arguments) in enumerate(calls, first)
        ]
        return f"{self.first}{(self.between or '').join(texts)}{self.last}"


HERMES = ToolFormat(
    "hermes", "<tool_call>",
    first="<tool_call>\n", call='{"name": "', middle='", "arguments": ', after="}",
    between="\n</tool_call>\n<tool_call>\n", last="\n</tool_call>",
    head=re.compile("<tool_call>" + _JSON_HEAD), next=None,
    tail=re.compile(_JSON_TAIL + r"\s*</tool_call>"), end="}</tool_call>",
)  # fmt: skip


def _json_list(name: str, begin: str, end: str = "", **traits: Any) -> ToolFormat:
    """All calls as one JSON list between two texts."""
    return ToolFormat(
        name, begin,
        first=f"{begin}[", call='{"name": "', middle='", "arguments": ', after="}", between=", ",
        last=f"]{end}",
        head=re.compile(re.escape(begin) + r"\s*\[" + _JSON_HEAD),
        next=re.compile(_JSON_TAIL + r"\s*," + _JSON_HEAD),
        tail=re.compile(_JSON_TAIL + r"\s*\]" + (r"\s*" + re.escape(end) if end else "")),
        end=f"}}]{end}", **traits,
    )  # fmt: skip


MISTRAL_LIST = _json_list("mistral", "[TOOL_CALLS]", control=("[TOOL_CALLS]",), short_ids=True)
GRANITE = _json_list("granite", "<|tool_call|>", control=("<|tool_call|>",))  # 3; Granite 4 has Hermes' form
HUNYUAN = _json_list("hunyuan", "<tool_calls>", "</tool_calls>")
NEMOTRON = _json_list("nemotron", "<TOOLCALL>", "</TOOLCALL>")  # Nano; version 3 has Qwen's XML
# What LFM2 writes if it is asked for JSON. Without that, it writes Python: `python_formats.py`.
LFM2_JSON = _json_list(
    "lfm2-json", "<|tool_call_start|>", "<|tool_call_end|>", control=("<|tool_call_end|>",), spaced=False
)

MISTRAL_ARGS = ToolFormat(
    "mistral-args", "[TOOL_CALLS]",
    first="[TOOL_CALLS]", call="", middle="[ARGS]", after="", between="[TOOL_CALLS]", last="",
    head=re.compile(r"\[TOOL_CALLS\]\s*(?P<name>[\w-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*(?=\{)"), next=None,
    tail=re.compile(""), end="", control=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), short_ids=True,
)  # fmt: skip

LLAMA = ToolFormat(
    "llama", None,
    first="", call='{"name": "', middle='", "parameters": ', after="}", between=None, last="",
    head=re.compile(_JSON_HEAD), next=None, tail=re.compile(_JSON_TAIL), end="}", control=(PYTHON_TAG,),
)  # fmt: skip


# A message to a function; see `airllm/text/harmony.py`. Its end is the end of an answer.
HARMONY = ToolFormat(
    "harmony", "<|channel|>commentary to=functions.",
    first="", call="<|channel|>commentary to=functions.", middle=" <|constrain|>json<|message|>",
    after="<|call|>", between=None, last="",
    head=re.compile(
        r"<\|channel\|>commentary to=functions\.(?P<name>[\w-]+) <\|constrain\|>json<\|message\|>"
    ),
    next=None, tail=re.compile(re.escape("<|call|>")), end="<|call|>",
    control=("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"),
)  # fmt: skip


# DeepSeek V3 and R1 fence the arguments; V3.1 does not.
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_FENCED_HEAD = rf"\s*{_BEGIN}\s*function{_SEPARATOR}\s*(?P<name>[\w-]+)\s*```json\s*(?=\{{)"
_PLAIN_HEAD = rf"\s*{_BEGIN}\s*(?P<name>[\w-]+){_SEPARATOR}\s*(?=\{{)"

DEEPSEEK_FENCED = ToolFormat(
    "deepseek-fenced", _ALL_BEGIN,
    first=_ALL_BEGIN, call=f"{_BEGIN}function{_SEPARATOR}", middle="\n```json\n", after=f"\n```{_END}",
    between="\n", last=_ALL_END,
    head=re.compile(_ALL_BEGIN + _FENCED_HEAD), next=re.compile(rf"\s*```\s*{_END}{_FENCED_HEAD}"),
    tail=re.compile(rf"\s*```\s*{_END}\s*{_ALL_END}"), end=f"```{_END}{_ALL_END}",
    control=(_BEGIN, _SEPARATOR, _END),
)  # fmt: skip

DEEPSEEK = ToolFormat(
    "deepseek", _ALL_BEGIN,
    first=_ALL_BEGIN, call=_BEGIN, middle=_SEPARATOR, after=_END, between="", last=_ALL_END,
    head=re.compile(_ALL_BEGIN + _PLAIN_HEAD), next=re.compile(rf"\s*{_END}{_PLAIN_HEAD}"),
    tail=re.compile(rf"\s*{_END}\s*{_ALL_END}"), end=f"{_END}{_ALL_END}", control=(_BEGIN, _END),
)  # fmt: skip

# The numbers of Kimi K2 count the calls of a conversation; its ids are names and numbers.
_KIMI_HEAD = (
    r"\s*<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[\w-]+):\d+)\s*"
    r"<\|tool_call_argument_begin\|>\s*(?=\{)"
)
_KIMI_TOOLS = "<|im_system|>tool_declare<|im_middle|>"  # Kimi K2's first template writes no calls
_KIMI_END = r"\s*<\|tool_call_end\|>"

KIMI = ToolFormat(
    "kimi", "<|tool_calls_section_begin|>",
    first="<|tool_calls_section_begin|>", call="<|tool_call_begin|>functions.",
    middle=f":{NUMBER}<|tool_call_argument_begin|>", after="<|tool_call_end|>", between="",
    last="<|tool_calls_section_end|>",
    head=re.compile(r"<\|tool_calls_section_begin\|>" + _KIMI_HEAD), next=re.compile(_KIMI_END + _KIMI_HEAD),
    tail=re.compile(_KIMI_END + r"\s*<\|tool_calls_section_end\|>"),
    end="<|tool_call_end|><|tool_calls_section_end|>", control=("<|tool_call_begin|>", "<|tool_call_end|>"),
)  # fmt: skip


_COHERE_HEAD = (
    r'\s*\{\s*(?:"tool_call_id"\s*:\s*"\d+"\s*,\s*)?"tool_name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*'
    r'"parameters"\s*:\s*(?=\{)'
)

COHERE = ToolFormat(
    "cohere", "<|START_ACTION|>",
    first="<|START_ACTION|>[\n    ", call=f'{{"tool_call_id": "{NUMBER}", "tool_name": "',
    middle='", "parameters": ', after="}", between=",\n    ", last="\n]<|END_ACTION|>",
    head=re.compile(r"<\|START_ACTION\|>\s*\[" + _COHERE_HEAD), next=re.compile(r"\s*\}\s*," + _COHERE_HEAD),
    tail=re.compile(r"\s*\}\s*\]\s*<\|END_ACTION\|>"), end="}]<|END_ACTION|>",
    around_text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)  # fmt: skip


# Command R and R+, by their template `tool_use`: to answer by a text is a tool of its own there.
COMMAND_R = ToolFormat(
    "command-r", "Action:",
    first="Action: ```json\n[\n", call='    {\n        "tool_name": "', middle='",\n        "parameters": ',
    after="\n    }", between=",\n", last="\n]```",
    head=re.compile(r"Action:\s*```json\s*\[" + _COHERE_HEAD), next=re.compile(r"\s*\}\s*," + _COHERE_HEAD),
    tail=re.compile(r"\s*\}\s*\]\s*```"), end="}]```", only_calls=True,
)  # fmt: skip


def shows_lfm2(template: str) -> bool:
    """Whether a chat template is LFM2's. Those of LFM2.5 only have the last of these signs."""
    return any(
        sign in template for sign in ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: [")
    )


def shows_harmony(template: str) -> bool:
    """Whether a chat template writes calls in channels; it may put the name together of parts."""
    return "<|channel|>" in template and re.search(r"to=\W*functions\.", template) is not None


def format_of(template: str) -> ToolFormat | None:
    """The form that a chat template's source shows; None if it shows none that is known."""
    if shows_harmony(template):
        return HARMONY
    if shows_lfm2(template):
        return LFM2_JSON
    if KIMI.first in template or _KIMI_TOOLS in template:
        return KIMI
    if "<|START_ACTION|>" in template:
        return COHERE
    if '"tool_name"' in template and "Action:" in template:
        return COMMAND_R
    if _ALL_BEGIN in template:
        return DEEPSEEK_FENCED if "```json" in template else DEEPSEEK
    if "<function=" in template or "<arg_key>" in template:  # calls as XML
        return None
    for each in (HUNYUAN, NEMOTRON):
        if each.first in template:
            return each
    if "<tool_call>" in template:
        return HERMES
    if "<|tool_call|>" in template and "<|start_of_role|>" in template:
        return GRANITE
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL_LIST
    ends = "<|eot_id|>" in template or "<|eot|>" in template  # Llama 3's, or Llama 4's
    if re.search(r'"parameters\\?"\s*:', template) and ends:
        return LLAMA
    return None
