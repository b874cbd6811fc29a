"""The user's backend settings: backend.json, the environment, and their precedence.

From highest to lowest: AIRLLM_BACKEND, the file that AIRLLM_CONFIG names, backend.json of the checkout,
backend.json in the user's configuration folder, DEFAULTS. BACKEND_CONFIG.md explains every key. An invalid
file raises an error with file, line and key; it never falls back to a default. Standard library only.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from airllm.backends import json_file
from airllm.backends.config_schema import (  # noqa: F401  other code imports all of these from this module
    ALIASES,
    AUTO,
    BUILT_IN,
    DEFAULTS,
    IN_ORDER,
    KEYS,
    ConfigError,
    Wrong,
    aliases,
    canonical_name,
    checks,
    expand_order,
    format_value,
    is_auto,
    known_names,
    names_of,
    order,
    preference,
)
from airllm.backends.declaration import CHECKOUT


@dataclass(frozen=True)
class Config:
    """The three settings, in canonical names, and where they come from.

    `source` is AIRLLM_BACKEND, AIRLLM_CONFIG, checkout, user or defaults; `path` is the file that was read.
    `own` has the file's keys that backends declare.
    """

    preferred_backend: str
    backend_priority: tuple[str, ...]
    force_backend: str | None
    source: str
    path: Path | None
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The backends to try in turn if none is preferred."""
        return expand_order(self.backend_priority)

    def as_dict(self) -> dict[str, Any]:
        """The three keys as in backend.json."""
        return {key: _plain(getattr(self, key)) for key in KEYS}


BY_DEFAULT = Config(AUTO, IN_ORDER, None, source="defaults", path=None)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# ---- files ----


@dataclass(frozen=True)
class _File:
    """The values of a configuration file, and its text, from which errors take line numbers."""

    path: Path
    values: dict[str, Any]
    text: str

    def config(self, source: str) -> Config:
        """The checked settings; a missing key has its default."""
        known = checks(self.values)
        for key in self.values:
            self._refuse_misspelt(key)
        settings = {key: self._check(key, known[key]) for key in known if key in {*self.values, *KEYS}}
        own = {key: settings.pop(key) for key in known if key in settings and key not in KEYS}
        return Config(**settings, own=own, source=source, path=self.path)

    def _check(self, key: str, check: Callable[[Any], Any]) -> Any:
        try:
            return check(self.values[key] if key in self.values else DEFAULTS[key])
        except Wrong as wrong:
            line = json_file.line_of(self.text, key, item=wrong.item)
            raise ConfigError(f"{self.path}:{line}: {key} {wrong}") from None

    def _refuse_misspelt(self, key: str) -> None:
        """Reject a key that is nearly one of ours, which would be ignored; other programs may add keys."""
        meant = _closest_key(key, self.values)
        if meant != key and meant not in self.values:
            line = json_file.line_of(self.text, key)
            raise ConfigError(f"{self.path}:{line}: unknown key {key!r}, expected {meant!r}")


def _closest_key(key: str, keys: Mapping[str, Any]) -> str:
    """Our key that equals or nearly equals `key`, a key of a file; else `key` itself."""
    return next(iter(get_close_matches(key, checks(keys), n=1, cutoff=0.8)), key)


def _open_file(path: Path) -> _File:
    return _File(path, *json_file.read(path, f"the keys {', '.join(KEYS)}"))


def read(path: Path | str, source: str = "AIRLLM_CONFIG") -> Config:
    """The settings of one file; ConfigError with file, line and key if it is invalid."""
    return _open_file(Path(path)).config(source)


def write(path: Path | str, **changes: Any) -> Config:
    """Change some keys of a file, which may not exist yet, and return its new settings.

    The write is atomic for readers. Other keys, their order and the file's mode are kept. Nothing is written
    if the result would not be a valid configuration.
    """
    path = Path(os.path.realpath(path))
    with json_file.one_writer(path):
        old = _open_file(path) if path.exists() else _File(path, dict(DEFAULTS), "")
        return _store(_File(path, {**old.values, **changes}, ""))


def reset(path: Path | str) -> Config:
    """Write DEFAULTS to a file, even an invalid one; keys that are not airllm's are kept."""
    path = Path(os.path.realpath(path))
    others: dict[str, Any] = {}
    with json_file.one_writer(path):
        with contextlib.suppress(ConfigError):
            values = _open_file(path).values
            others = {
                key: value for key, value in values.items() if _closest_key(key, values) not in checks(values)
            }
        return _store(_File(path, {**others, **DEFAULTS}, ""))


def _store(file: _File) -> Config:
    text = json_file.text_of(file.values)
    config = dataclasses.replace(file, text=text).config("AIRLLM_CONFIG")
    json_file.write(file.path, text)
    return config


# ---- precedence ----


def user_file() -> Path | None:
    """backend.json in the user's configuration folder; None for a user without a home folder, as in some
    containers.
    """
    try:
        return _user_folder() / "backend.json"
    except RuntimeError:  # platformdirs and pathlib both raise this
        return None


def _user_folder() -> Path:
    try:
        from platformdirs import user_config_path
    except ImportError:  # the rule of platformdirs on Linux
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "airllm"
    return user_config_path("airllm", appauthor=False)


def named_file(variable: str, name: str) -> Path:
    """The file that an environment variable names. ConfigError for `~nobody/...`."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{variable}={name}: {error}") from None


def checkout_file() -> Path | None:
    """backend.json next to setup.py if this package is in a checkout; the file may not exist."""
    return CHECKOUT / "backend.json" if (CHECKOUT / "setup.py").is_file() else None


def effective_file() -> tuple[str, Path | None]:
    """The file in force, as `source` and `path` of Config; ConfigError if AIRLLM_CONFIG names no file."""
    named = os.environ.get("AIRLLM_CONFIG")
    if named:
        path = named_file("AIRLLM_CONFIG", named)
        if not path.exists():
            raise ConfigError(f"AIRLLM_CONFIG={named}: there is no such file")
        return "AIRLLM_CONFIG", path
    places = (("checkout", checkout_file()), ("user", user_file()))
    return next(((source, path) for source, path in places if path and path.exists()), ("defaults", None))


def load_file() -> Config:
    """The settings of the files, without AIRLLM_BACKEND."""
    source, path = effective_file()
    return read(path, source) if path else BY_DEFAULT


def load() -> Config:
    """The settings in force, by the module's precedence."""
    config = load_file()
    requested = os.environ.get("AIRLLM_BACKEND", "").strip()
    return _override(config, requested) if requested else config


def _override(config: Config, requested: str) -> Config:
    """Apply AIRLLM_BACKEND: a name forces, a list is an order to try, auto undoes preference and force."""
    changes: dict[str, Any] = {"preferred_backend": AUTO, "force_backend": None}
    try:
        if "," in requested:
            changes["backend_priority"] = order(requested)
        elif not is_auto(requested):
            changes = {"force_backend": canonical_name(requested)}
    except ConfigError as error:
        raise ConfigError(f"AIRLLM_BACKEND={requested}: {error}") from None
    return dataclasses.replace(config, **changes, source="AIRLLM_BACKEND")


def how_to_unforce(settings: Config) -> str:
    """How to end the force mode of `settings`, for an error; it depends on the source of the force."""
    if settings.source == "AIRLLM_BACKEND":
        return "Remove the environment variable AIRLLM_BACKEND"
    if settings.source == "checkout":
        return "Remove force mode: python setup.py configure_backend --backend=auto"
    return f'Remove force mode: set "force_backend" to null in {settings.path}'
