"""Something that is used on several threads, and closed by one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class InUse:
    """Counts who uses something. Who wants to close it hides it from new users first, and waits for the others."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._users = 0  # guarded by _changed

    @contextmanager
    def using(self) -> Iterator[None]:
        """Entered before it is looked up, left after the last use."""
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def wait_for_users(self) -> None:
        """Blocks until nobody uses it."""
        with self._changed:
            self._changed.wait_for(lambda: self._users == 0)
