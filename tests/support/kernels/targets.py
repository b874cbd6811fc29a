"""The kernels under test: each backend that runs here, by instruction set or device."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from airllm.backends import config, registry
from tests.support.environment import ALL


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
            variants = getattr(module, "variants", lambda: [""])()
            found += [Target(name, variant) for variant in without_repeats(variants)]
    return found


def without_repeats(variants: Sequence[str]) -> list[str]:
    """OpenCL's CPU devices run the kernels for GPUs too: here one of them does, since each takes a minute to
    compile them; with AIRLLM_TEST_ALL every one.
    """
    gpu = [each for each in variants if "gpu kernels" in each]
    left_out = [] if ALL else gpu[1:]
    return [each for each in variants if each not in left_out]
