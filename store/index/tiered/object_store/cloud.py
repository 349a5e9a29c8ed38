"""Object stores that `obstore` supports: S3 and compatible ones, Google's, Azure's."""

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

from quarry_mq.store.errors import Invalid
from quarry_mq.store.index.tiered.object_store.protocol import ObjectMissing, ObjectStoreError

CHUNK_SIZE: Final = 8 << 20
"""Bytes of a chunk that is read back after an upload."""
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
SEARCH_PATIENCE: Final = timedelta(seconds=5)
"""The wait of a range read or a removal for a silent store: a search reads many ranges, some in turn."""
SEARCH_TIMEOUT: Final = timedelta(seconds=30)
"""The limit for a range while bytes arrive: a key that all messages have makes it some dozen megabytes."""
UPLOAD_PATIENCE: Final = timedelta(seconds=30)
"""The time that an upload waits for a silent store, measured by obstore from the begin of a part to the answer."""
PARTS_AT_ONCE: Final = 2
"""Parts uploaded at a time. A part has 5 MB: three megabits per second deliver each in time. No caller waits."""
UPLOAD_TIMEOUT: Final = timedelta(minutes=10)
"""The limit for reading a file back while bytes arrive: 80 MB in that time are one megabit per second."""
RETRIES: Final = 2
RETRY_TIME: Final = timedelta(seconds=2)
"""The time within which one request is retried.

A request that failed for longer, as with a silent store, is not retried here: an upload is tried again later, and a
search reports the error.
"""
CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
"""Options of obstore's HTTP client. They are passed separately from the store's; obstore panics if they are mixed."""
PLACE_MISSING: Final = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
"""Matches an error about a missing bucket or container: stores answer 404 to this, too."""
REASON: Final = re.compile(r"<Code>(\w+)</Code>")
VARYING: Final = re.compile(r"\?\S+| in [\d.]+[nµm]?s(, after [^-]*)?(?= - )|: <.*")
"""Matches the parts of an error text that vary between occurrences: times, numbers of uploads and requests."""


class CloudObjects:
    """Implements `store.index.tiered.object_store.protocol.ObjectStore`. Other threads run while a call waits."""

    def __init__(self, address: str, store: Store, *, patient: Store | None = None) -> None:
        """Use a store. `patient` is the same store with longer timeouts, for whole objects."""
        self.address = address
        self._store = store
        self._patient = store if patient is None else patient

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> CloudObjects:
        """Open `s3://bucket/prefix` and the like; `options` have obstore's names. Raises Invalid."""
        return cls(
            url,
            _connected(url, options, timeout=SEARCH_TIMEOUT, read_timeout=SEARCH_PATIENCE),
            patient=_connected(url, options, timeout=UPLOAD_TIMEOUT, read_timeout=UPLOAD_PATIENCE),
        )

    def put(self, name: str, content: memoryview) -> None:
        with self._named(name):
            obstore.put(self._patient, name, content, max_concurrency=PARTS_AT_ONCE)

    def read(self, name: str, position: int, size: int) -> bytes:
        with self._named(name):
            return obstore.get_range(self._store, name, start=position, length=size).to_bytes()

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._named(name):
            for chunk in obstore.get(self._patient, name).stream(min_chunk_size=CHUNK_SIZE):
                yield bytes(chunk)

    def names(self) -> Iterator[tuple[str, int]]:
        """Yield the names of all objects, with their sizes in bytes."""
        with self._named(""):
            for some in obstore.list(self._patient):
                yield from ((each["path"], each["size"]) for each in some)

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
            raise kind(f"{self.address}/{name}: {_words(error)}") from error


def _connected(url: str, options: Mapping[str, str], **timeouts: timedelta) -> Store:
    """Connect to a store. Raises Invalid."""
    of_store = {name: value for name, value in options.items() if name not in CLIENT_OPTIONS}
    client: dict[str, Any] = {
        "allow_http": any(value.startswith("http://") for value in of_store.values()),
        "connect_timeout": CONNECT_TIMEOUT,
        **timeouts,
        **{name: value for name, value in options.items() if name in CLIENT_OPTIONS},
    }
    retries = {"max_retries": RETRIES, "retry_timeout": RETRY_TIME}
    try:
        return from_url(url, client_options=client, retry_config=retries, **of_store)  # type: ignore[call-overload,no-any-return]
    except (BaseError, ValueError, TypeError) as error:
        raise Invalid(f"{url}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Return an error in one line that is the same at each occurrence. Obstore adds pages of Rust debug output."""
    whole = str(error)
    reason = REASON.search(whole)
    words = VARYING.sub("", whole.partition("\n")[0]) or type(error).__name__
    return words if reason is None else f"{words} ({reason[1]})"
