"""`airllm models`: the models that are on this machine, by the names that open them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from airllm.files.published.converted import converted_copies
from airllm.files.stores import STORES, Found, list_models
from airllm.readable import size


def show_models(options: argparse.Namespace) -> int:
    """Print each model of each store: name and size, with the program that keeps it."""
    found = {prefix: list_models(prefix) for prefix in STORES}
    if smollm2 := _smollm2():
        found = {"airllm": [smollm2], **found}
    if options.json:
        rows = [
            {**asdict(each), "path": str(each.path), "store": prefix}
            for prefix, some in found.items()
            for each in some
        ]
        print(json.dumps(rows))
        return 0
    width = max((len(each.name) for some in found.values() for each in some), default=0)
    for prefix, some in found.items():
        title = STORES[prefix].title if prefix in STORES else "airllm"
        print(f"{title}:" if some else f"{title}: none")
        for each in some:
            print(f"  {each.name:<{width}}  {size(each.nbytes):>8}")
    if copies := converted_copies():
        whole = size(sum(path.stat().st_size for path in copies))
        print(f"Converted folders: {len(copies)} in {copies[0].parent}, {whole}; they may be deleted")
    return 0


def _smollm2() -> Found | None:
    """The small model, if it has been fetched."""
    from airllm.files import smollm2

    try:
        path = smollm2.cache_dir() / smollm2.GGUF
    except smollm2.Unavailable:
        return None
    return Found("smollm2", path.stat().st_size, path) if path.is_file() else None
