"""`quarry serve` whose store never finishes its last flush, as on a disk that hangs. Arguments as for `quarry`."""

from __future__ import annotations

from threading import Event

from quarry_mq.cli.main import app
from quarry_mq.store.message_store import MessageStore


def main() -> None:
    closing = Event()
    flush_queues = MessageStore.flush_queues

    def hang(self: MessageStore) -> None:
        flush_queues(self)
        closing.wait()

    MessageStore.flush_queues = hang  # type: ignore[method-assign]
    app()


if __name__ == "__main__":
    main()
