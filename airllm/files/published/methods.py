"""Which schemes there are, and which one a folder's config.json names for a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airllm.files.published.bitsandbytes import bitsandbytes
from airllm.files.published.compressed_tensors import compressed_tensors
from airllm.files.published.fp8 import fp8
from airllm.files.published.gptq import awq, gptq
from airllm.files.published.mlx import mlx
from airllm.files.published.mxfp4 import mxfp4
from airllm.files.published.nvfp4 import MODELOPT, check_groups
from airllm.files.published.scheme import Scheme
from airllm.files.weight_file import ModelFileError


def modelopt(config: dict[str, Any]) -> Scheme:
    """NVIDIA's modelopt: FP8 or NVFP4."""
    if config.get("quant_algo") != "NVFP4":
        return fp8(config)
    for group in (config.get("config_groups") or {}).values():
        check_groups(group.get("weights") or {})
    return MODELOPT


# quant_method of config.json -> its scheme. ValueError for settings that are not supported.
_METHODS: Mapping[str, Callable[[dict[str, Any]], Scheme]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "mlx": mlx,
    "modelopt": modelopt,
    "mxfp4": mxfp4,
}
_SUPPORTED = ", ".join(_METHODS)
_OTHERWISE = "safetensors in float32, float16 or bfloat16; or take a GGUF file for fewer bits"


@dataclass(frozen=True)
class Quantization:
    """How a folder's matrices are stored: in one scheme, or some modules in others or in none."""

    method: str
    scheme: Scheme
    others: Mapping[str, Scheme | None] = field(default_factory=dict)

    def scheme_of(self, module: str) -> Scheme | None:
        return self.others.get(module, self.scheme)


def quantization_of(path: Path, config: Mapping[str, Any]) -> Quantization | None:
    """What config.json (`path`) says; None if weights are floats. Raises ModelFileError, with the name of the
    method or of the setting that is not supported.
    """
    text = config.get("text_config")
    nested = text if isinstance(text, dict) else {}  # what else it may be, the configuration's reader refuses
    for key in ("quantization_config", "compression_config", "quantization"):
        found = config.get(key) or nested.get(key)
        if found:
            break
    else:
        return None
    if not isinstance(found, dict):
        raise ModelFileError(path, f"key {key}", f"has value {found!r}", "an object")
    # MLX's folders have "quantization", and a copy of it without a method.
    method = found.get("quant_method", "mlx" if "group_size" in found else None)
    if not isinstance(method, str) or method not in _METHODS:
        what = f"has quant_method {method!r}, which is not supported"
        raise ModelFileError(path, f"key {key}", what, f"one of {_SUPPORTED}; {_OTHERWISE}")
    try:
        return Quantization(method, _METHODS[method](found), _others(method, found))
    except (ValueError, TypeError, AttributeError) as error:
        what = f"has quant_method {method!r} with {error}, which is not supported"
        raise ModelFileError(path, f"key {key}", what, _OTHERWISE) from None


def _others(method: str, found: dict[str, Any]) -> dict[str, Scheme | None]:
    """MLX lists modules with other settings, or with none."""
    if method != "mlx":
        return {}
    modules = {name: each for name, each in found.items() if "." in name}
    return {
        name: mlx({**found, **each}) if isinstance(each, dict) else None for name, each in modules.items()
    }
