"""JSON schemas: what is wrong with a text by the package jsonschema, and grammars that may be refused."""

import decimal
import json

import jsonschema

from airllm.text.grammar import GrammarError

FORMATS = jsonschema.FormatChecker(["ipv4", "ipv6", "uuid"])


def violations(text: str, schema) -> list[str]:
    """What is wrong with a text, by the package jsonschema."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    errors = validator.iter_errors(json.loads(text))
    return [error.message for error in errors if not is_multiple(error)]


def is_multiple(error: jsonschema.ValidationError) -> bool:
    """Whether a value is a multiple after all: the package divides binary fractions."""
    if error.validator != "multipleOf":
        return False
    return decimal.Decimal(str(error.instance)) % decimal.Decimal(str(error.validator_value)) == 0


def compiled(grammars, schema):
    """The constraints of a schema; None if it is refused."""
    try:
        return grammars.json_schema(schema)
    except GrammarError:
        return None
