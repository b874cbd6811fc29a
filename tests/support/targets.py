"""The kernels under test: each backend that runs here, by instruction set or device."""

from dataclasses import dataclass
from types import ModuleType

from airllm.backends import config, registry


@dataclass(frozen=True)
class Target:
    """A backend, and which of its instruction sets or devices."""

    backend: str
    variant: str

    @property
    def module(self) -> ModuleType:
        module = registry.open_backend(self.backend).module
        assert module is not None
        return module

    def __str__(self) -> str:
        return f"{self.backend}:{self.variant}" if self.variant else self.backend


def targets() -> list[Target]:
    found = []
    for name in config.known_names():
        if module := registry.open_backend(name).module:
            found += [Target(name, variant) for variant in getattr(module, "variants", lambda: [""])()]
    return found
