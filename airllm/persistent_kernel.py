"""PersistentKernel by its public name: `airllm.engine.persistent_kernel`."""

from airllm.engine.persistent_kernel import PersistentKernel as PersistentKernel

__all__ = ["PersistentKernel"]
