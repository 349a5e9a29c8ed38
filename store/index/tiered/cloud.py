"""Object stores that `obstore` speaks with: S3 and what is compatible with it, Google's, Azure's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore as Store
from obstore.store import from_url

from store.errors import Invalid
from store.index.tiered.objects import ObjectMissing, ObjectStoreError

CHUNK_SIZE: Final = 8 << 20
"""Bytes, of what is read back after an upload."""
TIMEOUT: Final = timedelta(seconds=30)
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
RETRIES: Final = 2
"""Of one request. Who uploads tries again later; who searches is told."""
PLACE_MISSING: Final = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
"""Stores answer 404 to this, too."""


class CloudObjects:
    """Implements `store.index.tiered.objects.ObjectStore`. Other threads run while it waits."""

    def __init__(self, address: str, store: Store) -> None:
        self.address = address
        self._store = store

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> CloudObjects:
        """`s3://bucket/prefix` and the like; `options` as obstore names them. Raises Invalid."""
        client: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        if options.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        try:
            store = from_url(url, client_options=client, retry_config={"max_retries": RETRIES}, **options)  # type: ignore[call-overload]
        except (BaseError, ValueError, TypeError) as error:
            raise Invalid(f"{url}: {_first_line(error)}") from error
        return cls(url, store)

    def put(self, name: str, content: memoryview) -> None:
        with self._named(name):
            obstore.put(self._store, name, content)

    def read(self, name: str, position: int, size: int) -> bytes:
        with self._named(name):
            return obstore.get_range(self._store, name, start=position, length=size).to_bytes()

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._named(name):
            for chunk in obstore.get(self._store, name).stream(min_chunk_size=CHUNK_SIZE):
                yield bytes(chunk)

    def remove(self, name: str) -> None:
        try:
            with self._named(name):
                obstore.delete(self._store, name)
        except ObjectMissing:
            return

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            is_missing = isinstance(error, FileNotFoundError) and not PLACE_MISSING.search(str(error))
            kind = ObjectMissing if is_missing else ObjectStoreError
            raise kind(f"{self.address}/{name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Obstore adds pages of what it looks like in Rust."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
