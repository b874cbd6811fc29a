"""A backend as found on this machine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType


@dataclass(frozen=True)
class Backend:
    """A backend as found on this machine: its module and device, or `why_not` it cannot run."""

    name: str
    module: ModuleType | None = None
    device: str = ""
    why_not: str = ""
    cause: Exception | None = None
    kernels: dict[str, Callable] = field(default_factory=dict, repr=False)

    @property
    def takes_device_arrays(self) -> bool:
        """Whether the module has a memory of its own: it counts copies between that and the host's."""
        return hasattr(self.module, "copies")
