"""Empty sequences of a model: their keys and values in memory, or in files of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airllm.architectures.model_config import ModelConfig
from airllm.memory.kv_cache import Cache


@dataclass(frozen=True)
class CacheFactory:
    """Makes caches of `capacity` tokens. With a `folder` they are files there, which only the model of this
    `fingerprint` goes on from.
    """

    config: ModelConfig
    capacity: int
    dtype: str
    folder: Path | None = None
    fingerprint: str = ""

    def new(self, name: str | None = None) -> Cache:
        """An empty cache; with a `folder` that of this name, which may hold a sequence. Raises CacheFileError
        for a file that is not of this model and capacity, OSError if the disk has no room for it.
        """
        if self.folder is None:
            if name is not None:
                expected = "expected none without kv_cache_dir=..."
                raise ValueError(f"new_cache: name has value {name!r}, {expected}")
            return Cache(self.config, self.capacity, self.dtype)
        from airllm.memory.kv_cache_file import FileCache  # not on Windows

        return FileCache(self.config, self.capacity, self.dtype, self.folder, name, self.fingerprint)
