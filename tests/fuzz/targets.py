"""The table of what is fuzzed: what an input is, how inputs are made, what is done with one, its limits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import seeds, uses
from tests.fuzz.mutate_bytes import Mutator, mutate_bytes, splice, truncate
from tests.fuzz.mutate_gguf import damage_tensors, mutate_gguf
from tests.fuzz.mutate_json import (
    after_first_line,
    another_first_line,
    deepen,
    in_header,
    mix_values,
    mutate_json,
)
from tests.fuzz.mutate_template import mutate_template, nest


def _no_seeds() -> list[bytes]:
    return []


@dataclass(frozen=True)
class Target:
    """A row. `file`: the name of an input in its folder. `mutators` with the more weight stand several times.

    `errors` are the documented ones: each must name the input's file, or its folder. `others` are documented
    too, and are about what the caller asks of a file that is right. An input may take `seconds` by the clock
    and `megabytes` of addresses. `made` has the seeds that are not in the corpus.
    """

    file: str
    mutators: tuple[Mutator, ...]
    prepare: Callable[[Path], uses.Use]
    errors: tuple[str, ...] = ("ModelFileError",)
    others: tuple[str, ...] = ()
    made: Callable[[], list[bytes]] = _no_seeds
    seconds: float = 10
    megabytes: int = 1024

    def seeds(self, name: str) -> list[bytes]:
        return [*self.made(), *seeds.corpus(name)]


_BYTES = (mutate_bytes, truncate, splice)
_JSON = (mutate_json, mutate_json, mutate_json, mix_values, deepen, *_BYTES)
# FloatingPointError: the weights make logits that are no numbers.
_OF_A_CALLER = ("MemoryBudgetError", "ContextFull", "FloatingPointError")

TARGETS = {
    "gguf": Target(
        "model.gguf",
        (mutate_gguf, mutate_gguf, mutate_gguf, damage_tensors, *_BYTES),
        uses.gguf_file,
        errors=("ModelFileError", "ChatTemplateError"),
        others=_OF_A_CALLER,
        made=seeds.gguf_files,
    ),
    "safetensors": Target(
        "model.safetensors",
        (in_header(mutate_json), in_header(mutate_json), in_header(deepen), damage_tensors, *_BYTES),
        uses.safetensors_file,
        others=_OF_A_CALLER,
        made=seeds.safetensors_files,
    ),
    "config": Target(
        "config.json", _JSON, uses.config_file, others=_OF_A_CALLER, made=seeds.configs
    ),
    "published": Target(
        "config.json", _JSON, uses.published_config_file, others=_OF_A_CALLER, made=seeds.published_configs
    ),
    "tokenizer": Target("tokenizer.json", _JSON, uses.tokenizer_file, made=seeds.tokenizers),
    "backend": Target("backend.json", _JSON, uses.backend_file, errors=("ConfigError",)),
    "tuning": Target(
        "tuning.json",
        _JSON,
        uses.tuning_file,
        # ValueError: times of an op with more arrays than it has; calls of it are not routed
        errors=("ConfigError", "ValueError"),
        made=seeds.tunings,
    ),
    "template": Target(
        "chat_template.jinja",
        (mutate_template, mutate_template, mutate_template, nest, *_BYTES),
        uses.template_file,
        errors=("ModelFileError", "ChatTemplateError"),
        seconds=30,
    ),
    "server": Target(
        "request.body",
        (*map(after_first_line, _JSON), another_first_line),
        uses.server_body,
        errors=(),
        seconds=30,
    ),
}  # fmt: skip
