"""Estimate the memory that a model needs, and check that a backend's device has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airllm.backends import registry
from airllm.backends.api.discovery import BackendPreference
from airllm.backends.api.kernel_backend import KernelBackend, init_backend
from airllm.backends.devices import devices_of

GIB = 1 << 30
_VECTORS = 16  # vectors of the model's width that a token needs during a layer


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a model needs: `weights`, `kv_cache` (for the longest sequence), `activations` (for the
    tokens of one pass).
    """

    weights: int
    kv_cache: int
    activations: int

    @property
    def total_bytes(self) -> int:
        return self.weights + self.kv_cache + self.activations

    def total_gb(self) -> float:
        """The total in units of 2**30 bytes."""
        return self.total_bytes / GIB


def estimate_inference_memory(
    hidden: int,
    intermediate: int,
    n_layers: int,
    vocab: int,
    n_heads: int,
    n_kv_heads: int,
    max_seq_len: int,
    dtype_bytes: int,
) -> MemoryEstimate:
    """Estimate the memory of a Llama decoder from its sizes: weights, keys and values of `max_seq_len`
    tokens, and activations of one token, with `dtype_bytes` per element.

    For a model file with its formats, use `airllm.memory.estimate.estimate`. ValueError for impossible sizes.
    """
    sizes = dict(locals())
    if wrong := next((name for name, value in sizes.items() if value < 1), None):
        raise ValueError(f"estimate_inference_memory: {wrong} is {sizes[wrong]}, expected at least 1")
    if hidden % n_heads or n_heads % n_kv_heads:
        found = f"hidden={hidden}, n_heads={n_heads}, n_kv_heads={n_kv_heads}"
        wanted = "hidden a multiple of n_heads, and that one of n_kv_heads"
        raise ValueError(f"estimate_inference_memory: {found}, expected {wanted}")
    kv = hidden // n_heads * n_kv_heads
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * intermediate + 2 * hidden
    return MemoryEstimate(
        weights=(n_layers * layer + 2 * vocab * hidden + hidden) * dtype_bytes,
        kv_cache=n_layers * 2 * kv * max_seq_len * dtype_bytes,
        activations=_VECTORS * hidden * dtype_bytes,
    )


def init_backend_with_memory_check(
    preference: BackendPreference | str,
    required_bytes: int,
    fallbacks: Sequence[str] = (),
) -> KernelBackend:
    """The backend of `init_backend`, if its device now has `required_bytes` free.

    Raises MemoryError with both numbers if not, and the errors of `init_backend`.
    """
    backend = init_backend(preference, fallbacks)
    free, device = free_memory(backend.name())
    if free < required_bytes:
        raise MemoryError(
            f"the backend {backend.name()!r} has {free} bytes ({free / GIB:.2f} GB) free on {device}, "
            f"expected {required_bytes} ({required_bytes / GIB:.2f} GB): take a smaller context, "
            "weights of fewer bits, or let the engine read the layers as it needs them (max_memory=...)"
        )
    return backend


def free_memory(backend_name: str) -> tuple[int, str]:
    """Free bytes of a backend's device (total bytes if it does not report free ones), and its name."""
    devices = devices_of(registry.require_backend(backend_name).module)
    device = next((d for d in devices if d.free_memory is not None), devices[0])  # the one in use
    return device.total_memory if device.free_memory is None else device.free_memory, device.name
