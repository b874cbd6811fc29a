"""Damage to chat templates: statements of others, and expressions that escape, never end or take memory."""

import random
import re
from collections.abc import Sequence

_TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.S)

# What a hostile template would try. N is replaced by a number.
_HOSTILE = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ messages.append(1) }}", "{{ self.__init__ }}", "{{ namespace.__class__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}", "{{ 'x' * N }}", "{{ [0] * N }}", "{{ 10 ** N }}", "{{ N ** N }}",
    "{{ 'x'.ljust(N) }}", "{{ 'x'.center(N)|length }}", "{{ 'x'|center(N) }}", "{{ 'x'|indent(N) }}",
    "{{ '%Nd'|format(1) }}", "{{ '%*d'|format(N, 1) }}", "{{ '%Nd' % 1 }}", "{{ '{:N}'.format(1) }}",
    "{{ range(N)|list|length }}", "{{ range(99999)|join('x' * 9999)|length }}", "{{ '1' * 99999|int }}",
    "{{ ('x' * 99999).replace('x', 'y' * 99999)|length }}", "{{ 'x'.zfill(N) }}", "{{ '\\t'.expandtabs(N) }}",
    "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
    "{% block a %}{{ super() }}{% endblock %}",
    "{{ messages|tojson(indent=N) }}", "{{ messages|batch(N, 'x')|list }}", "{{ messages|slice(N)|list }}",
    "{{ 'x y'|wordwrap(1, wrapstring='x' * 9999) }}", "{{ messages|pprint }}", "{{ loop.index }}",
    "{{ raise_exception('no') }}", "{{ strftime_now('%Y' * N) }}", "{{ dict(a=1)|xmlattr }}", "{{ 1 / 0 }}",
    "{{ undefined.x }}", "{{ messages[N].content }}", "{{ ''.join(messages) }}", "{{ (1).real.__class__ }}",
    "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}", "{% break %}", "{% generation %}",
    "{{ 'x'|urlize }}", "{{ messages|sum(attribute='content') }}", "{{ messages|map('upper')|join }}",
    "{{ 9999999999999999999|round(N) }}", "{{ 'a'|format(a=1) }}", "{{ '\\ud800' }}", "{{ 'x'.encode('N') }}",
    "{% set x = caller() %}", "{% call f() %}{% endcall %}", "{% filter upper %}{% endfilter %}",
    "{% set x %}{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endset %}{{ x * 999 }}",
)  # fmt: skip
_NUMBERS = ("0", "-1", "7", "300", "99999", "100001", "1000000", "67108864", "1000000000", "9" * 19, "9" * 40)


def mutate_template(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Tags are removed, moved, taken from other templates, or replaced by hostile ones."""
    text = data.decode("utf-8", "replace")
    parts = _TAG.split(text)
    tags = _TAG.findall(text)
    others = _TAG.findall(chance.choice(seeds).decode("utf-8", "replace")) or ["{{ 1 }}"]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(tags) + 1)
        added = [_hostile(chance)] if chance.random() < 0.6 else [chance.choice(others)]
        cut = chance.choice((0, 0, 1))
        parts[at + 1 : at + 1] = [""] * (1 - len(tags[at : at + cut]))
        tags[at : at + cut] = added
    return "".join(a + b for a, b in zip(parts, [*tags, ""], strict=True)).encode("utf-8", "replace")


def _hostile(chance: random.Random) -> str:
    return chance.choice(_HOSTILE).replace("N", chance.choice(_NUMBERS))


def nest(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Blocks or brackets in each other, as deep as a compiler may not expect."""
    levels = chance.choice((20, 100, 2000, 50_000))
    before, after = chance.choice(
        ((b"{% if 1 %}", b"{% endif %}"), (b"{% for i in [1] %}", b"{% endfor %}"), (b"{{ (", b") }}"),
         (b"{% set x %}", b"{% endset %}"), (b"{{ [", b"] }}"), (b"{{ -", b" }}"))
    )  # fmt: skip
    if before.startswith(b"{{"):
        return data + before[:3] + before[3:] * levels + b"1" + after.strip(b" }") * levels + b" }}"
    return data + before * levels + after * levels
