"""Calls as XML: each argument is an element of its own, and a text is written without quotes.

Other values are JSON. So the types in a tool's schema say what an argument is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airllm.text.grammar.schema import check_schema
from airllm.text.tools.formats import ToolFormat

_NAME = r"(?P<name>[\w-]+)"
# What a text may have besides its type. More cannot be enforced where it is not JSON.
_OF_TEXTS = {"type", "description", "title", "default", "enum", "examples"}


@dataclass(frozen=True)
class XmlFormat(ToolFormat):
    """An argument is `key`, its name, `key_end`, its value and `value_end`; `json_key_end`: instead of
    `key_end` before a value that is JSON, if it is not the same. `argument`: the expression of a reader for
    what precedes a value; its group "text", if any, is "true" for a text and "false" for JSON. `value_close`:
    where the value ends; `done`: what follows the last one.
    """

    key: str = ""
    key_end: str = ""
    json_key_end: str = ""
    value_end: str = ""
    argument: re.Pattern[str] = re.compile("")
    value_close: str = ""
    done: str = ""


QWEN_XML = XmlFormat(
    "qwen-xml", "<tool_call>",
    first="<tool_call>\n", call="<function=", middle=">\n", after="</function>",
    between="\n</tool_call>\n<tool_call>\n", last="\n</tool_call>",
    head=re.compile(rf"<tool_call>\s*<function={_NAME}>\s*(?=<parameter=|</function>)"), next=None,
    tail=re.compile(r"\s*</function>\s*</tool_call>"), end="</function></tool_call>",
    control=("</tool_call>",),
    key="<parameter=", key_end=">\n", value_end="\n</parameter>\n",
    argument=re.compile(r"\s*<parameter=(?P<key>[^>]+)>"), value_close="</parameter>", done="</function>",
)  # fmt: skip

# Seed-OSS has elements of Qwen's in an own one, and values without line ends.
SEED_XML = replace(
    QWEN_XML, name="seed-xml", trigger="<seed:tool_call>", first="<seed:tool_call>\n",
    between="\n</seed:tool_call>\n<seed:tool_call>\n", last="\n</seed:tool_call>",
    head=re.compile(rf"<seed:tool_call>\s*<function={_NAME}>\s*(?=<parameter=|</function>)"),
    tail=re.compile(r"\s*</function>\s*</seed:tool_call>"), end="</function></seed:tool_call>",
    control=("</seed:tool_call>",), key_end=">", value_end="</parameter>\n",
)  # fmt: skip

GLM_XML = XmlFormat(
    "glm-xml", "<tool_call>",
    first="<tool_call>", call="", middle="\n", after="", between="</tool_call>\n<tool_call>",
    last="</tool_call>",
    head=re.compile(rf"<tool_call>\s*{_NAME}\s*(?=<arg_key>|</tool_call>)"), next=None,
    tail=re.compile(r"\s*</tool_call>"), end="</tool_call>",
    control=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    key="<arg_key>", key_end="</arg_key>\n<arg_value>", value_end="</arg_value>\n",
    argument=re.compile(r"\s*<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>"), value_close="</arg_value>",
    done="</tool_call>",
)  # fmt: skip

# GLM 4.7 and newer write no line ends between the elements.
GLM47_XML = replace(
    GLM_XML, name="glm-4.7-xml", middle="", between="</tool_call><tool_call>",
    key_end="</arg_key><arg_value>", value_end="</arg_value>",
)  # fmt: skip

MINIMAX_XML = XmlFormat(
    "minimax-xml", "<minimax:tool_call>",
    first="<minimax:tool_call>\n", call='<invoke name="', middle='">\n', after="</invoke>\n", between="",
    last="</minimax:tool_call>",
    head=re.compile(rf'<minimax:tool_call>\s*<invoke name="{_NAME}">\s*(?=<parameter |</invoke>)'),
    next=re.compile(rf'\s*</invoke>\s*<invoke name="{_NAME}">\s*(?=<parameter |</invoke>)'),
    tail=re.compile(r"\s*</invoke>\s*</minimax:tool_call>"), end="</invoke></minimax:tool_call>",
    key='<parameter name="', key_end='">', value_end="</parameter>\n",
    argument=re.compile(r'\s*<parameter name="(?P<key>[^"]+)">'), value_close="</parameter>",
    done="</invoke>",
)  # fmt: skip


# DeepSeek V3.2. A word of its own in each element keeps them apart from XML in texts.
_DSML = "｜DSML｜"
_DSML_INVOKE = rf'\s*<{_DSML}invoke name="{_NAME}">\s*(?=<{_DSML}parameter |</{_DSML}invoke>)'

DSML = XmlFormat(
    "deepseek-dsml", f"<{_DSML}function_calls>",
    first=f"<{_DSML}function_calls>\n", call=f'<{_DSML}invoke name="', middle='">\n',
    after=f"</{_DSML}invoke>\n", between="", last=f"</{_DSML}function_calls>",
    head=re.compile(rf"<{_DSML}function_calls>{_DSML_INVOKE}"),
    next=re.compile(rf"\s*</{_DSML}invoke>{_DSML_INVOKE}"),
    tail=re.compile(rf"\s*</{_DSML}invoke>\s*</{_DSML}function_calls>"),
    end=f"</{_DSML}invoke></{_DSML}function_calls>",
    key=f'<{_DSML}parameter name="', key_end='" string="true">', json_key_end='" string="false">',
    value_end=f"</{_DSML}parameter>\n",
    argument=re.compile(
        rf'\s*<{_DSML}parameter name="(?P<key>[^"]+)"(?:\s+string="(?P<text>true|false)")?\s*>'
    ),
    value_close=f"</{_DSML}parameter>", done=f"</{_DSML}invoke>",
)  # fmt: skip


def xml_format_of(template: str) -> XmlFormat | None:
    """The form that a chat template's source shows; None if it shows no XML that is known."""
    if _DSML in template and "function_calls>" in template:
        return DSML
    if "<minimax:tool_call>" in template:
        return MINIMAX_XML
    if "<arg_key>" in template:
        return GLM47_XML if "</arg_key><arg_value>" in template else GLM_XML
    if "<seed:tool_call>" in template:
        return SEED_XML
    return QWEN_XML if "<function=" in template and "<parameter=" in template else None


@dataclass(frozen=True)
class Argument:
    """An argument that a call may have. `values`: the engine's document of its schema if it is JSON, the
    texts that it may be, or None for any text.
    """

    key: str
    required: bool
    values: Mapping[str, Any] | Sequence[str] | None


def arguments_of(schema: Mapping[str, Any], where: str) -> list[Argument] | None:
    """The arguments that an object of this schema has, in its order. None if a grammar of XML cannot enforce
    it. Raises GrammarError for a schema that is invalid.
    """
    check_schema(schema, where)
    known = {"type", "properties", "required", "additionalProperties", "description", "title", "$defs"}
    properties = schema.get("properties", {})
    if set(schema) - known or not isinstance(properties, Mapping):
        return None
    if set(schema.get("required", ())) - set(properties):
        return None
    found = []
    for key, each in properties.items():
        if not isinstance(each, Mapping) or not re.fullmatch(r"[\w.-]+", key) or not _is_of_one_kind(each):
            return None
        required = key in schema.get("required", ())
        found.append(Argument(key, required, _values_of(each, schema, where)))
    return found


def _is_of_one_kind(schema: Mapping[str, Any]) -> bool:
    """Whether values are texts without conditions, or never texts."""
    if schema.get("type") == "string":
        return not set(schema) - _OF_TEXTS
    return schema.get("type") in ("integer", "number", "boolean", "array", "object", "null")


def _values_of(schema: Mapping[str, Any], whole: Mapping[str, Any], where: str) -> Any:
    if schema.get("type") == "string":
        return schema.get("enum")
    shared = {"$defs": whole["$defs"]} if "$defs" in whole else {}
    return check_schema({**schema, **shared}, where).document()
