"""The state of a backend on this machine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType


@dataclass(frozen=True)
class Backend:
    """A backend on this machine: its module and device, or `why_not`, the reason why it cannot run."""

    name: str
    module: ModuleType | None = None
    device: str = ""
    why_not: str = ""
    cause: Exception | None = None
    kernels: dict[str, Callable] = field(default_factory=dict, repr=False)

    @property
    def takes_device_arrays(self) -> bool:
        """Whether the module has its own device memory; such a module counts copies to and from it."""
        return hasattr(self.module, "copies")
