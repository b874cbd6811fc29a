"""The folder for what airllm may keep and may lose: `AIRLLM_CACHE_DIR`, else the user's cache folder."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which need not exist. RuntimeError if none is named and the user has no home."""
    if chosen := os.environ.get("AIRLLM_CACHE_DIR"):
        return Path(chosen)
    try:
        from platformdirs import user_cache_dir
    except ImportError:  # platformdirs' rule on Linux
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airllm"
    return Path(user_cache_dir("airllm"))
