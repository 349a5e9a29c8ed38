"""Where files of the index are uploaded to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ObjectStore(Protocol):
    """Objects under names. Every method may block for long, and raises ObjectStoreError.

    ObjectMissing only where the store itself is there and says so: one that does not answer, or has lost its bucket or
    folder, may have the object.
    """

    @property
    def address(self) -> str:
        """What to call it."""

    def put(self, name: str, content: memoryview) -> None:
        """Store an object whole, or not at all; one that is there is replaced."""

    def read(self, name: str, position: int, size: int) -> bytes:
        """These bytes of an object: no more, and fewer only where the store is not what it should be.

        Raises ObjectMissing.
        """

    def chunks(self, name: str) -> Iterator[bytes]:
        """All of an object, from its begin on. Raises ObjectMissing."""

    def remove(self, name: str) -> None:
        """One that is not there is no error."""


class ObjectStoreError(OSError):
    """The store did not answer, or not with what was asked for. It may later."""


class ObjectMissing(ObjectStoreError):
    """There is no such object."""
