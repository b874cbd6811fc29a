"""Makes the empty caches of a model, in memory or in files of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airllm.architectures.model_config import ModelConfig
from airllm.memory.kv_cache import Cache


@dataclass
class CacheFactory:
    """Makes caches of `capacity` tokens. With a `folder`, they are files there, which only the model with
    this `fingerprint` can continue; it changes when the model gets adapters.
    """

    config: ModelConfig
    capacity: int
    dtype: str
    folder: Path | None = None
    fingerprint: str = ""

    def new(self, name: str | None = None) -> Cache:
        """An empty cache; with a `folder` and a `name`, the cache in that file, which may hold a sequence.

        Raises CacheFileError for a file of another model or capacity, OSError for a full disk.
        """
        if self.folder is None:
            if name is not None:
                expected = "expected none without kv_cache_dir=..."
                raise ValueError(f"new_cache: name has value {name!r}, {expected}")
            return Cache(self.config, self.capacity, self.dtype, windowed=True)
        from airllm.memory.kv_cache_file import FileCache  # does not work on Windows

        return FileCache(self.config, self.capacity, self.dtype, self.folder, name, self.fingerprint)
