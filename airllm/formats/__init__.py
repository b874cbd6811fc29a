"""The formats of stored weights: ggml's blocks of quantized values.

A block holds `values` consecutive values of a row in `bytes` bytes, little-endian, bit for bit as in ggml.
Its Python package `gguf` gives the same values and, if it can quantize, the same bytes. This NumPy code
defines the formats. A value is `scale * q`, or `scale * q + offset`, with q of a few bits. Blocks of 256
have two levels: the scales of their sub-blocks of 16 or 32 are themselves integers of a few bits. In iq1,
iq2 and iq3, several q together are a vector of a codebook.
"""

from airllm.formats.format import Format
from airllm.formats.interleaved import Interleaved, can_interleave, interleave
from airllm.formats.quantized import Quantized
from airllm.formats.table import FORMATS, format_named, is_defined, names

__all__ = [
    "FORMATS",
    "Format",
    "Interleaved",
    "Quantized",
    "can_interleave",
    "format_named",
    "interleave",
    "is_defined",
    "names",
]
