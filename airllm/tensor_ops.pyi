"""The ops' types. `python setup.py write_types` generates this file from airllm/tensor_ops.py.

NumPy's arrays give NumPy's arrays; arrays of other libraries, and lists, give the same kind.
"""

from typing import Any, Literal, overload

from numpy.typing import NDArray

from airllm.backends.describe import (
    explain as explain,
    get_backend_info as get_backend_info,
    print_backend_info as print_backend_info,
)
from airllm.backends.registry import (
    get_backend as get_backend,
    reload_backend as reload_backend,
    set_backend as set_backend,
    use_backend as use_backend,
)
from airllm.formats.quantized import Quantized as Quantized
from airllm.ops.op import OPS as OPS

__all__ = [
    "rms_norm",
    "layer_norm",
    "add_rms_norm",
    "silu",
    "gelu",
    "swiglu",
    "geglu",
    "softmax",
    "apply_rope",
    "matmul",
    "matmul_vec",
    "linear",
    "attention",
    "attention_scores",
    "weighted_sum_rows",
    "embedding",
    "quantize",
    "dequantize",
    "Quantized",
    "explain",
    "get_backend",
    "get_backend_info",
    "print_backend_info",
    "reload_backend",
    "rope_table",
    "set_backend",
    "use_backend",
]

@overload
def rms_norm(
    x: NDArray[Any],
    weight: NDArray[Any],
    eps: float = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def rms_norm(x: Any, weight: Any, eps: float = ..., *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def layer_norm(
    x: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = ...,
    eps: float = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def layer_norm(
    x: Any,
    weight: Any,
    bias: Any = ...,
    eps: float = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def add_rms_norm(
    x: NDArray[Any],
    residual: NDArray[Any],
    weight: NDArray[Any],
    eps: float = ...,
    *,
    out: tuple[NDArray[Any], NDArray[Any]] | None = ...,
    backend: str | None = ...,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any,
    eps: float = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> tuple[Any, ...]: ...
@overload
def silu(x: NDArray[Any], *, out: NDArray[Any] | None = ..., backend: str | None = ...) -> NDArray[Any]: ...
@overload
def silu(x: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def gelu(
    x: NDArray[Any],
    approximate: Literal['tanh', 'none'] = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def gelu(
    x: Any,
    approximate: Literal['tanh', 'none'] = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def swiglu(
    gate: NDArray[Any],
    up: NDArray[Any],
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def swiglu(gate: Any, up: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def geglu(
    gate: NDArray[Any],
    up: NDArray[Any],
    approximate: Literal['tanh', 'none'] = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def geglu(
    gate: Any,
    up: Any,
    approximate: Literal['tanh', 'none'] = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def softmax(
    x: NDArray[Any],
    scale: float = ...,
    mask: NDArray[Any] | None = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def softmax(
    x: Any,
    scale: float = ...,
    mask: Any = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def apply_rope(
    x: NDArray[Any],
    cos: NDArray[Any],
    sin: NDArray[Any],
    interleaved: bool = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def apply_rope(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def matmul(a: Any, b: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def matmul_vec(
    w: NDArray[Any] | Quantized,
    x: NDArray[Any],
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def matmul_vec(w: Any, x: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def linear(
    x: NDArray[Any],
    weight: NDArray[Any] | Quantized,
    bias: NDArray[Any] | None = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def linear(x: Any, weight: Any, bias: Any = ..., *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    mask: NDArray[Any] | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    window: int | None = ...,
    sinks: NDArray[Any] | None = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = ...,
    causal: bool = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    window: int | None = ...,
    sinks: Any = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def attention_scores(
    query: NDArray[Any],
    keys: NDArray[Any],
    scale: float = ...,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def attention_scores(
    query: Any,
    keys: Any,
    scale: float = ...,
    *,
    out: Any = ...,
    backend: str | None = ...,
) -> Any: ...
@overload
def weighted_sum_rows(
    weights: NDArray[Any],
    matrix: NDArray[Any],
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def weighted_sum_rows(weights: Any, matrix: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def embedding(
    ids: NDArray[Any],
    table: NDArray[Any] | Quantized,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
@overload
def embedding(ids: Any, table: Any, *, out: Any = ..., backend: str | None = ...) -> Any: ...
@overload
def quantize(x: NDArray[Any], format: str, *, backend: str | None = ...) -> Quantized: ...
@overload
def quantize(x: Any, format: str, *, backend: str | None = ...) -> Quantized: ...
def dequantize(
    q: Quantized,
    *,
    out: NDArray[Any] | None = ...,
    backend: str | None = ...,
) -> NDArray[Any]: ...
def rope_table(
    positions: Any,
    dim: int,
    theta: float = ...,
    scaling: dict[str, Any] | None = ...,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
