"""What tests of answers share: forms of calls, tools and a question, and reading an answer piece by piece."""

import itertools

from airllm.text.answers import AnswerReader
from airllm.text.tools import formats

FORMATS = (
    formats.HERMES,
    formats.MISTRAL_LIST,
    formats.MISTRAL_ARGS,
    formats.LLAMA,
    formats.DEEPSEEK,
    formats.DEEPSEEK_FENCED,
    formats.KIMI,
    formats.COHERE,
    formats.HUNYUAN,
    formats.NEMOTRON,
    formats.COMMAND_R,
    formats.GRANITE,
)
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now", "parameters": CITY}},
         {"type": "function", "function": {"name": "now", "description": None}}]  # fmt: skip
QUESTION = [{"role": "user", "content": "How are you?"}]
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


def read_in_pieces(reader: AnswerReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """The text, the thoughts, and the names and arguments of calls."""
    text = reasoning = ""
    calls: dict[int, tuple[str, str]] = {}
    for i, piece in enumerate(pieces):
        delta = reader.read(piece, i == len(pieces) - 1)
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        for call in delta.calls:
            name, arguments = calls.get(call.index, ("", ""))
            assert (call.id is None) == (call.name is None) == (call.index in calls)
            calls[call.index] = (call.name or name, arguments + call.arguments)
    assert reader.calls == len(calls)
    return text, reasoning, [calls[i] for i in range(len(calls))]


def cuts(text: str, places: list[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(ends)]
