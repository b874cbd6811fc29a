"""The public name of PersistentKernel's module, `airllm.engine.persistent_kernel`."""

from airllm.engine.persistent_kernel import PersistentKernel as PersistentKernel

__all__ = ["PersistentKernel"]
