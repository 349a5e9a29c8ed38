"""Reads named contexts: each holds a broker's addresses, its TLS files, and the user who signs the calls.

```toml
# ~/.config/quarry/contexts.toml
[production]
endpoint = "mq.example.com:8081"
admin = "mq.example.com:8082"
tls_ca = "authority.pem"
user = "operator"
secret_file = "operator.secret"
```

Relative paths begin at the folder of the contexts file.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FILE_VARIABLE: Final = "QUARRY_CONTEXTS"
NAME_VARIABLE: Final = "QUARRY_CONTEXT"
CURRENT: Final = "current"
"""Key of the file, above all contexts, that `quarry context use` sets: the context that is used by default."""
_TLS_FILES: Final = ("tls_ca", "tls_certificate", "tls_key")
_KEYS: Final = ("endpoint", "admin", "tls", *_TLS_FILES, "user", "secret_file")


class ContextInvalid(Exception):
    """A context cannot be used. The text is one line that names the file, and the key if one is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The settings of one broker in the contexts file."""

    endpoint: str | None = None
    admin: str | None = None
    tls: bool = False
    tls_ca: Path | None = None
    """Certificate authorities to trust (PEM); None: gRPC's own list."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    user: str | None = None
    secret: str | None = field(default=None, repr=False)
    secret_file: Path | None = None


def contexts_file() -> Path:
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else Path.home() / ".config" / "quarry" / "contexts.toml"


def all_contexts() -> dict[str, dict[str, Any]]:
    """Return the tables of all contexts in the file; none if the file is missing or unreadable."""
    return {name: given for name, given in _content().items() if isinstance(given, dict)}


def context_names() -> list[str]:
    return list(all_contexts())


def current_name() -> str | None:
    """Return the context of a run without `--context`: that of the environment, or else the current one of the file."""
    if NAME_VARIABLE in os.environ:
        return os.environ[NAME_VARIABLE] or None
    name = _content().get(CURRENT)
    return name if isinstance(name, str) and name else None


def _content() -> dict[str, Any]:
    try:
        return tomllib.loads(contexts_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def read_context(file: Path, name: str) -> Context:
    """Read and check a context. Raises ContextInvalid."""
    try:
        contexts = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ContextInvalid(f"{file}: {getattr(cause, 'strerror', None) or cause}") from cause
    given = contexts.get(name)
    if not isinstance(given, dict):
        raise ContextInvalid(f"{file}: no context {name!r}; there are: {_listed(contexts)}")
    return _Reader(file, name, given).context()


def _listed(contexts: dict[str, Any]) -> str:
    return ", ".join(sorted(name for name, given in contexts.items() if isinstance(given, dict))) or "none"


class _Reader:
    def __init__(self, file: Path, name: str, given: dict[str, Any]) -> None:
        self._file = file
        self._name = name
        self._given = given

    def context(self) -> Context:
        unknown = sorted(set(self._given) - set(_KEYS))
        if unknown:
            raise self._wrong(unknown[0], "no such key")
        for one, other in (("tls_certificate", "tls_key"), ("user", "secret_file")):
            for key, partner in ((one, other), (other, one)):
                if self._given.get(key) is not None and self._given.get(partner) is None:
                    raise self._wrong(key, f"needs {partner}")
        has_files = any(key in self._given for key in _TLS_FILES)
        tls = self._given.get("tls", has_files)
        if not isinstance(tls, bool):
            raise self._wrong("tls", "must be true or false")
        if has_files and not tls:
            raise self._wrong("tls", "is false, but TLS files are given")
        secret_file = self._path("secret_file")
        return Context(
            endpoint=self._address("endpoint"),
            admin=self._address("admin"),
            tls=tls,
            tls_ca=self._path("tls_ca"),
            tls_certificate=self._path("tls_certificate"),
            tls_key=self._path("tls_key"),
            user=self._text("user"),
            secret=None if secret_file is None else _secret(secret_file),
            secret_file=secret_file,
        )

    def _address(self, key: str) -> str | None:
        text = self._text(key)
        host, _, port = (text or "host:1").rpartition(":")
        if not host or not port.isdecimal():
            raise self._wrong(key, f"{text!r} is not host:port")
        return text

    def _text(self, key: str) -> str | None:
        value = self._given.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self._wrong(key, "must be text")

    def _path(self, key: str) -> Path | None:
        text = self._text(key)
        return None if text is None else self._file.parent / Path(text).expanduser()

    def _wrong(self, key: str, what: str) -> ContextInvalid:
        return ContextInvalid(f"{self._file}: {self._name}.{key}: {what}")


def _secret(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
                raise ContextInvalid(f"{path}: other users may read the secret: chmod 600 {path}")
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as cause:
        raise ContextInvalid(f"{path}: {getattr(cause, 'strerror', None) or 'is no text'}") from cause
    if not secret:
        raise ContextInvalid(f"{path}: the file contains no secret")
    return secret
