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

from quarry_mq.store.errors import Invalid
from quarry_mq.store.index.tiered.object_store.protocol import ObjectMissing, ObjectStoreError

CHUNK_SIZE: Final = 8 << 20
"""Bytes, of what is read back after an upload."""
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
SEARCH_PATIENCE: Final = timedelta(seconds=5)
"""With a silent store, of who reads a range or removes: a search reads many, some of them one after the other."""
SEARCH_TIMEOUT: Final = timedelta(seconds=30)
"""For a range as long as bytes come: a key that all messages have makes it some dozen megabytes."""
UPLOAD_PATIENCE: Final = timedelta(seconds=30)
"""Obstore counts it for a part of a file from its begin to the answer."""
PARTS_AT_ONCE: Final = 2
"""Of 5 MB, so that three megabits in a second bring each there in time. Nobody waits for an upload."""
UPLOAD_TIMEOUT: Final = timedelta(minutes=10)
"""For reading a file back as long as bytes come: 80 MB in that time are one megabit in a second."""
RETRIES: Final = 2
RETRY_TIME: Final = timedelta(seconds=2)
"""Of one request. What was in vain for longer, as silence is, is not tried again here: who uploads tries again later,
who searches is told."""
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
"""Obstore takes them by another way than the others, and panics where they are mixed."""
PLACE_MISSING: Final = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
"""Stores answer 404 to this, too."""
REASON: Final = re.compile(r"<Code>(\w+)</Code>")
VARYING: Final = re.compile(r"\?\S+| in [\d.]+[nµm]?s(, after [^-]*)?(?= - )|: <.*")
"""What the same trouble does not say again: times, numbers of uploads and requests."""


class CloudObjects:
    """Implements `store.index.tiered.object_store.protocol.ObjectStore`. Other threads run while it waits."""

    def __init__(self, address: str, store: Store, *, patient: Store | None = None) -> None:
        """`patient` is the same store with longer timeouts, for whole objects."""
        self.address = address
        self._store = store
        self._patient = store if patient is None else patient

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> CloudObjects:
        """`s3://bucket/prefix` and the like; `options` as obstore names them. Raises Invalid."""
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
        """Of all objects, with their sizes in bytes."""
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
    """Raises Invalid."""
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
    """In one line, the same for the same trouble. Obstore adds pages of what it looks like in Rust."""
    whole = str(error)
    reason = REASON.search(whole)
    words = VARYING.sub("", whole.partition("\n")[0]) or type(error).__name__
    return words if reason is None else f"{words} ({reason[1]})"
