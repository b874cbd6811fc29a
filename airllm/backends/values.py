"""What a configuration may say: the names of backends, the keys, and what each key may have.

Where a configuration stands, and which one counts, is in `config`. Standard library only.
"""

import functools
import json
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

BUILT_IN = ("cuda", "mlx", "opencl", "webgpu", "cpp", "python")  # as the automatic order tries them
IN_ORDER = ("cuda", "opencl", "cpp", "python")  # what a configuration says that leaves it at that
_APPLE = sys.platform == "darwin"
ALIASES = {
    "cpu": "cpp",
    "openmp": "cpp",
    "numpy": "python",
    "onednn": "mkldnn",
    **({"mps": "mlx", "metal": "mlx"} if _APPLE else {"mps": "metal"}),
}
AUTO = "auto"
# What a backend is called in a summary, and what it runs on.
LABELS = {
    "cuda": ("CUDA", "CUDA"),
    "mlx": ("MLX", "Metal or CPU"),
    "opencl": ("OpenCL", "OpenCL"),
    "webgpu": ("WebGPU", "WebGPU"),
    "cpp": ("CPU", "CPU"),
    "python": ("NumPy", "CPU"),
    "rocm": ("ROCm", "ROCm"),
    "triton": ("Triton", "CUDA"),
    "nki": ("NKI", "Neuron"),
    "cudnn": ("cuDNN", "CUDA"),
    "mkl": ("MKL", "CPU"),
    "mkldnn": ("oneDNN", "CPU"),
    "openblas": ("OpenBLAS", "CPU"),
    "metal": ("Metal", "Metal"),
}
# Names that other systems know, which are no backend of this one, and why.
_PRODUCTS = "float32 matrix products are NumPy's, by the BLAS that print_backend_info() names"
ABSENT = {
    "rocm": "there is no backend of this name: AMD's GPUs run the opencl backend, with ROCm's OpenCL driver",
    "triton": "there is no backend for Triton: its kernels run on PyTorch's tensors alone, and without a GPU "
    "only in its interpreter; cuda and opencl run on the same GPUs without PyTorch",
    "nki": "there is no backend for AWS's Neuron devices: their compiler takes whole graphs, not single ops",
    "cudnn": "cuDNN is a library, not a backend: cuda has kernels of its own for all that it would do here",
    "mkl": f"MKL is a library, not a backend: {_PRODUCTS} (NumPy can be had with MKL)",
    "mkldnn": f"oneDNN is a library, not a backend: {_PRODUCTS}, and it gains nothing over that",
    "openblas": f"OpenBLAS is a library, not a backend: {_PRODUCTS}",
}
if not _APPLE:
    ABSENT["metal"] = (
        "Metal is for Apple's GPUs, of which there is none here; mlx runs on the CPU by its own name"
    )
DEFAULTS: dict[str, Any] = {
    "preferred_backend": AUTO,
    "backend_priority": list(IN_ORDER),
    "force_backend": None,
}
KEYS = tuple(DEFAULTS)
OPTIONAL = ("opencl_device",)  # not written into a new file: OpenCL chooses by itself
SETTINGS = ("AIRLLM_CPU_ISA", "AIRLLM_NUM_THREADS")  # of the environment, read where a backend is imported


class ConfigError(ValueError):
    """A configuration that says something it cannot mean; the message names file, line and key."""

    __module__ = "airllm.backends.config"  # where users find it


class Wrong(ValueError):
    """What is wrong with a value, before it is known where the value stands; `item` is the part at fault."""

    def __init__(self, item: Any, message: str):
        super().__init__(message)
        self.item = item


def is_of_a_setting(error: Exception) -> bool:
    """Whether a backend's import says that one of SETTINGS cannot be; it names that first."""
    return isinstance(error, ImportError) and str(error).startswith(SETTINGS)


# ---- names ----


def known_names() -> tuple[str, ...]:
    """The built-in backends, then those that installed distributions add by an entry point."""
    return (*BUILT_IN, *sorted(added().keys() - set(BUILT_IN)))


def added() -> dict[str, EntryPoint]:
    """The backends of installed distributions, as found when first asked for or when the path changed."""
    return _added(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _added(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Looking through what is installed takes milliseconds."""
    return {entry.name: entry for entry in reversed(tuple(entry_points(group="airllm.backends")))}


def forget_added() -> None:
    """Look again for backends of installed distributions."""
    _added.cache_clear()


def in_full(order: tuple[str, ...]) -> tuple[str, ...]:
    """The shipped order stands for that of all built-in backends; any other is what it says."""
    return BUILT_IN if order == IN_ORDER else order


def is_auto(name: Any) -> bool:
    """Whether it is the word for the automatic choice."""
    return isinstance(name, str) and name.lower() == AUTO


def canonical(name: str) -> str:
    """The backend's own name for it or one of ALIASES, in letters of any case; ConfigError that lists the
    known ones otherwise.
    """
    folded = str(name).lower()
    folded = ALIASES.get(folded, folded)
    if folded in BUILT_IN or folded in ABSENT:
        return folded
    for known in known_names():  # of which other distributions may write theirs as they like
        if known.lower() == folded:
            return known
    raise ConfigError(f"unknown backend {name!r}, expected {_names()}")


def names_of(backend: str) -> list[str]:
    """What a backend may be called: its own name, then others."""
    return [backend, *(alias for alias, own in ALIASES.items() if own == backend)]


def _names(*others: str) -> str:
    aliases = ", ".join(f"{alias} = {backend}" for alias, backend in ALIASES.items() if backend not in ABSENT)
    return f"one of: {', '.join([*others, *known_names()])} ({aliases})"


# ---- values ----


def _name(value: Any, *others: str) -> str:
    if not isinstance(value, str):
        raise Wrong(value, f"has {shown(value)}, expected {_names(*others)}")
    try:
        return canonical(value)
    except ConfigError:
        raise Wrong(value, f"has the unknown backend {value!r}, expected {_names(*others)}") from None


def _preferred(value: Any) -> str:
    return AUTO if is_auto(value) else _name(value, AUTO)


def _force(value: Any) -> str | None:
    return None if value is None else _name(value, "null")


def _priority(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Wrong(value, f"has {shown(value)}, expected a list of backends")
    if not value:
        raise Wrong(value, "is empty, expected at least one backend")
    names: list[str] = []
    for item in value:
        if _name(item) in names:
            raise Wrong(item, f"has {item!r} twice, expected each backend once")
        names.append(_name(item))
    return tuple(names)


def _device(value: Any) -> str:
    """An index, "platform:device" or a part of a name, as text: which devices there are is not known here."""
    text = str(value).strip() if type(value) in (int, str) else ""
    if not text or text.startswith("-"):
        expected = 'a device\'s index, "platform:device" or a part of its name'
        raise Wrong(value, f"has {shown(value)}, expected {expected}")
    return text


def preference(text: str) -> str:
    """A backend's name or auto; ConfigError that lists the known ones otherwise."""
    return _said(_preferred, text)


def order(text: str) -> tuple[str, ...]:
    """The backends of a comma-separated list; ConfigError for one that is unknown or there twice."""
    return _said(_priority, [name.strip() for name in text.split(",")])


def _said(check: Callable[[Any], Any], value: Any) -> Any:
    """`check(value)` of something that stands in no file."""
    try:
        return check(value)
    except Wrong as wrong:
        raise ConfigError(str(wrong)) from None


CHECKS: dict[str, Callable[[Any], Any]] = {
    "preferred_backend": _preferred,
    "backend_priority": _priority,
    "force_backend": _force,
    "opencl_device": _device,
}


def shown(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: "a boolean"}
    return kinds.get(type(value)) or f"{json.dumps(value)} (a {'string' if type(value) is str else 'number'})"
