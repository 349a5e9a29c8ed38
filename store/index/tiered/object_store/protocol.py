"""The contract of the stores to which index files are uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ObjectStore(Protocol):
    """Objects under names. Every method may block for long, and raises ObjectStoreError.

    ObjectMissing is raised only when the store itself exists and reports it: a store that does not answer, or has lost
    its bucket or folder, may have the object.
    """

    @property
    def address(self) -> str:
        """The name of the store in messages."""

    def put(self, name: str, content: memoryview) -> None:
        """Store an object whole, or not at all. An existing object is replaced."""

    def read(self, name: str, position: int, size: int) -> bytes:
        """Read these bytes of an object: never more, and fewer only if the store misbehaves.

        Raises ObjectMissing.
        """

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the whole object from its begin on. Raises ObjectMissing."""

    def remove(self, name: str) -> None:
        """Remove an object. A missing object is no error."""


class ObjectStoreError(OSError):
    """The store did not answer, or not with the requested bytes. It may do so later."""


class ObjectMissing(ObjectStoreError):
    """The object does not exist."""
