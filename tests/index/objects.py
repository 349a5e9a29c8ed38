"""An object store in memory that misbehaves where it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quarry_mq.store.index.tiered.object_store.protocol import ObjectMissing, ObjectStoreError

CHUNK = 100


class FaultyObjects:
    """Implements `store.index.tiered.object_store.protocol.ObjectStore`. Survives whatever happens to the machine."""

    address = "memory://index"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_down = False
        self.spoil: Callable[[bytes], bytes] | None = None
        """What is made of everything that is read."""
        self.reads: list[tuple[str, int, int]] = []
        self.before_put: Callable[[], None] = lambda: None

    def _answer(self) -> None:
        if self.is_down:
            raise ObjectStoreError("memory://index: no answer")

    def put(self, name: str, content: memoryview) -> None:
        self._answer()
        self.before_put()
        self.objects[name] = bytes(content)

    def read(self, name: str, position: int, size: int) -> bytes:
        self._answer()
        self.reads.append((name, position, size))
        return self._spoiled(self._object(name)[position : position + size])

    def chunks(self, name: str) -> Iterator[bytes]:
        self._answer()
        content = self._spoiled(self._object(name))
        for begin in range(0, len(content), CHUNK):
            yield content[begin : begin + CHUNK]

    def remove(self, name: str) -> None:
        self._answer()
        self.objects.pop(name, None)

    def _object(self, name: str) -> bytes:
        if name not in self.objects:
            raise ObjectMissing(f"memory://index/{name}: there is no such object")
        return self.objects[name]

    def _spoiled(self, content: bytes) -> bytes:
        return content if self.spoil is None else self.spoil(content)
