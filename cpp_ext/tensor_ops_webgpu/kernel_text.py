"""The source of a kernel: declarations of its arrays and numbers, then files of `kernels/`."""

import functools
import re
from pathlib import Path

from airllm.formats import FORMATS
from tensor_ops_webgpu.codebooks import OF_CODEBOOKS, codebook_table
from tensor_ops_webgpu.launches import BLOCKS_32, STORED, Launch

_NUMBERS = "struct Numbers {{ {fields} }}\n@group(0) @binding(0) var<uniform> numbers: Numbers;\n"
_INPUT = """
@group(0) @binding({place}) var<storage, read> {name}_words: array<u32>;
fn {name}_at(i: u32) -> f32 {{
  switch numbers.{name}_type {{
    case 0u: {{ return 0.0; }}  // not given
    case F32: {{ return bitcast<f32>({name}_words[i]); }}
    case BOOL: {{ return bool_term({name}_words[i / 4u], i); }}
    case F16, BF16: {{ return half_value({name}_words[i / 2u], i, numbers.{name}_type); }}
    default: {{ return {other}; }}
  }}
}}
"""
_MISSING = "fn {name}_at(i: u32) -> f32 {{ return 0.0; }}\n"
# The start of the array's row for row `row` of the result: its leading axes are broadcast.
_START = """
fn {name}_start(row: u32) -> u32 {{
  let i3 = row % numbers.{name}_n3;
  let i2 = row / numbers.{name}_n3;
  let i1 = i2 / numbers.{name}_n2;
  let i0 = i1 / numbers.{name}_n1;
  return i0 * numbers.{name}_s0 + i1 % numbers.{name}_n1 * numbers.{name}_s1
       + i2 % numbers.{name}_n2 * numbers.{name}_s2 + i3 * numbers.{name}_s3;
}}
"""
# Elements i and, if count > 1, i + 1. i is even if they are halves of a word.
_OUTPUT = """
@group(0) @binding({place}) var<storage, read_write> {name}_words: array<u32>;
fn put_{name}(i: u32, first: f32, second: f32, count: u32) {{
  if (numbers.{name}_type == F32) {{
    {name}_words[i] = bitcast<u32>(first);
    if (count > 1u) {{
      {name}_words[i + 1u] = bitcast<u32>(second);
    }}
    return;
  }}
  let high = half_bits(second, numbers.{name}_type);
  {name}_words[i / 2u] = half_bits(first, numbers.{name}_type) | (high << 16u);
}}
"""
# Words that invocations share.
_SHARED_OUTPUT = """
@group(0) @binding({place}) var<storage, read_write> {name}_words: array<atomic<u32>>;
"""
# Value i of consecutive blocks of q8_0.
_Q8_0_VALUE = """
fn {name}_byte(at: u32) -> u32 {{
  return ({name}_words[at / 4u] >> (at % 4u * 8u)) & 0xffu;
}}
fn {name}_value(i: u32) -> f32 {{
  let block = i / 32u * 34u;
  let scale = half_value({name}_words[block / 4u], block / 2u, F16);
  return scale * (f32({name}_byte(block + 2u + i % 32u) ^ 128u) - 128.0);
}}
"""
_LANES = """
const LANES = {lanes}u;
"""
# The vectors of CODEBOOKS.
_BOOKS = """
@group(0) @binding({place}) var<uniform> books: array<vec4<u32>, {length}>;
"""
_BOOK = "const BOOK_{name} = {first}u;\n"
_ROW = """
fn row_at(i: u32) -> f32 {
  return bitcast<f32>(a_words[i]);
}
fn a_quad(i: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(a_words[i], a_words[i + 1u], a_words[i + 2u], a_words[i + 3u]));
}
"""
_GIVEN_ROW = """
fn prepare_row(lid: u32, group: u32) {}
"""
# The product of 32 values of an array of blocks, from 32 * `unit` on, with values of a from `at` on.
_BLOCK_PRODUCT = """
fn product(unit: u32, at: u32) -> f32 {{
  return product_{name}(unit * {bytes}u, at);
}}
"""
# Values 4 i to 4 i + 3 of those 32.
_QUAD = """
fn quad(unit: u32, i: u32) -> vec4<f32> {{
  let block = unit / {parts}u * {bytes}u;
  let scales = scales_{name}(block, unit % {parts}u, i / 4u);
  return scales.x * codes_{name}(block, unit % {parts}u, i) + scales.y;
}}
"""
# Value i of consecutive blocks.
_VALUE = """
fn block_value(i: u32) -> f32 {
  return quad(i / 32u, i % 32u / 4u)[i % 4u];
}
"""
_PART_PRODUCT = """
fn product(unit: u32, at: u32) -> f32 {{
  let block = unit / {parts}u * {bytes}u;
  let part = unit % {parts}u;
  var result = 0.0;
  for (var half = 0u; half < 2u; half++) {{
    var sum = 0.0;
    var total = vec4<f32>();
    for (var i = 4u * half; i < 4u * half + 4u; i++) {{
      let a = a_quad(at + 4u * i);
      sum += dot(codes_{name}(block, part, i), a);
      total += a;
    }}
    let scales = scales_{name}(block, part, half);
    result += scales.x * sum + scales.y * dot(total, vec4<f32>(1.0));
  }}
  return result;
}}
"""
_FLOAT_PRODUCT = """
fn product(unit: u32, at: u32) -> f32 {{
  var sum = 0.0;
  for (var i = 0u; i < 32u; i++) {{
    sum += {stored}_at(32u * unit + i) * row_at(at + i);
  }}
  return sum;
}}
"""
_OF_TWO_FORMATS = (
    "mixture_up",
    "mixture_down",
    "linear_beside",
    "normed_linear",
    "latent_append",
    "linear_sum",
)
_BY_COLUMNS = (
    "linear_blocks", "linear_experts_blocks", "mixture_up", "linear_beside", "normed_linear", "latent_append"
)  # fmt: skip
_WITH_UP = ("mixture_up", "linear_beside", "normed_linear")
_CHOICES = ("choose_experts", "mixture_up")
_SCANS = {"delta_scan": "given_inputs", "state_scan": "given_inputs"}  # and what they scan
_SCANS |= {"delta_step": "convolved_inputs", "state_step": "convolved_inputs"}
_CONVOLUTIONS = ("convolve", *_SCANS)
_SAME_TEXT = {"normed_linear": "linear_beside", "delta_step": "delta_scan", "state_step": "state_scan"}
_WRITES_Q8_0 = ("assign_q8_0", "latent_append")
_BY_VALUES = ("linear_row", "embedding", "copy")  # of an array that may have blocks
_BY_SLOTS = ("linear_experts", "linear_experts_blocks")
_FUNCTIONS = re.compile(r"^fn (\w+)\(", re.MULTILINE)
_FORMATS = re.compile(r"^fn codes_(\w+)\(", re.MULTILINE)


def text(launch: Launch) -> str:
    """The WGSL module of a launch's kernel, with entry point `main`."""
    stored = STORED[launch.kernel] if launch.format else ""
    parts = [f"const GROUP = {launch.group}u;\n", _file("dtypes"), _numbers(launch)]
    parts += [_MISSING.format(name=name) for name in launch.missing]
    for place, name in enumerate(launch.inputs, start=1):
        other = "block_value(i)" if name == stored and launch.kernel in _BY_VALUES else "0.0"
        if launch.kernel == "attention" and name in ("k", "v"):
            parts.append(_Q8_0_VALUE.format(name=name))
            other = f"{name}_value(i)"
        parts.append(_INPUT.format(name=name, place=place, other=other))
        if f"{name}_n1" in launch.numbers:
            parts.append(_START.format(name=name))
    for place, name in enumerate(launch.outputs, start=1 + len(launch.inputs)):
        shared = launch.kernel == "assign_q8_0"
        parts.append((_SHARED_OUTPUT if shared else _OUTPUT).format(name=name, place=place))
        if f"{name}_n1" in launch.numbers:
            parts.append(_START.format(name=name))
    if launch.reads_codebooks:
        parts += _books(1 + len(launch.inputs) + len(launch.outputs))
    if launch.kernel in _OF_TWO_FORMATS:
        parts += _of_mixture(launch)
    elif stored:
        parts += [_LANES.format(lanes=launch.lanes)] if launch.lanes else []
        parts += [_ROW] if launch.kernel in _BY_COLUMNS else []
        parts.append(_one_format(launch.kernel, launch.format, stored))
    if launch.kernel == "matmul_tile":
        parts.append(_file("tile_of_words" if launch.format else "tile_of_elements"))
    parts += [_file("formulas"), _file("groups")]
    if launch.kernel in _WRITES_Q8_0:
        parts.append(_file("q8_0"))
    if launch.kernel in _BY_COLUMNS:
        parts.append(_file("columns"))
    if launch.kernel in _CHOICES:
        parts.append(_file("choice"))
    if launch.kernel in _CONVOLUTIONS:
        parts.append(_file("convolution"))
    if launch.kernel in _SCANS:
        parts += [_file("recurrence"), _file(_SCANS[launch.kernel])]
    if launch.kernel in _BY_SLOTS:
        parts.append(_file("slots"))
    if launch.kernel == "linear_beside":
        parts.append(_GIVEN_ROW)
    return "\n".join([*parts, _file(_SAME_TEXT.get(launch.kernel, launch.kernel))])


def _one_format(kernel: str, name: str, stored: str) -> str:
    """The products of one format of blocks that are read as words."""
    of, own = FORMATS[name], _PART_PRODUCT
    files = ["block_parts", "codebook_parts"] if name in OF_CODEBOOKS else ["block_parts"]
    if kernel in (*_BY_VALUES, "matmul_tile"):
        own = _QUAD
    elif name in BLOCKS_32:
        files, own = ["blocks_32"], _BLOCK_PRODUCT
    own = own.format(name=name, bytes=of.bytes, parts=of.values // 32)
    own += _VALUE if kernel in _BY_VALUES else ""
    return "".join(map(_file, files)).replace("ARRAY", stored) + own


def _books(place: int) -> list[str]:
    """The declarations of the codebooks."""
    table = codebook_table()
    names = [_BOOK.format(name=name.upper(), first=first) for name, first in table.starts.items()]
    return [_BOOKS.format(place=place, length=table.words.size // 4), *names]


def _of_mixture(launch: Launch) -> list[str]:
    """The products of experts' weights, `product_shared` of the shared expert's, `product_up` and
    `product_shared_up` of what their gates multiply: of blocks, or floats.
    """

    def products(name: str, stored: str) -> str:
        return _one_format(launch.kernel, name, stored) if name else _FLOAT_PRODUCT.format(stored=stored)

    def renamed(name: str, stored: str) -> str:
        found = products(name, stored)
        if "y" in launch.inputs and stored.startswith("shared"):
            found = _of_other_row(found)
        names = "|".join(_FUNCTIONS.findall(found))
        return re.sub(rf"\b({names})\(", rf"\1_{stored}(", found)

    of_row = "wide_row" if "own" in launch.outputs else "own_row"
    rows = {"normed_linear": _file(of_row) + _file("normed_row"), "latent_append": ""}  # its own file has it
    own = products(launch.format, "b")
    if launch.kernel == "latent_append":  # the first product is that of queries
        own = own.replace("a_quad(", "query_quad(").replace("row_at(", "query_at(")
    row = rows.get(launch.kernel, _ROW) + (_of_other_row(_ROW) if "y" in launch.inputs else "")
    parts = [_LANES.format(lanes=launch.lanes), row, own]
    parts.append(renamed(launch.shared_format, "shared"))
    if launch.kernel in _WITH_UP:
        parts.append(renamed(launch.up_format, "up"))
    if launch.kernel == "mixture_up":
        parts.append(renamed(launch.shared_up_format, "shared_up"))
    return parts


def _of_other_row(text: str) -> str:
    """The text of products with the row y in place of a."""
    return re.sub(r"\b(?:a_|(?=row_at\b))", "y_", text)


@functools.cache
def stored_formats() -> dict[str, tuple[int, int, int]]:
    """For each format that the kernels read: ggml's number, and the values and bytes of a block."""
    found = [FORMATS[name] for name in _FORMATS.findall(_file("block_parts") + _file("codebook_parts"))]
    return {of.name: (of.ggml_type, of.values, of.bytes) for of in found}


def _numbers(launch: Launch) -> str:
    kinds = {"uint32": "u32", "float32": "f32"}
    fields = ", ".join(f"{name}: {kinds[n.dtype.name]}" for name, n in launch.numbers.items())
    return _NUMBERS.format(fields=fields)


@functools.cache
def _file(name: str) -> str:
    """A file of `kernels/`, which has a folder for each subject; no two have files of one name."""
    (path,) = (Path(__file__).parent / "kernels").glob(f"*/{name}.wgsl")
    return path.read_text(encoding="utf-8")
