"""A replica puts the frames of its primary into its store."""

from __future__ import annotations

from quarry_mq.server.replicas.wire import Ack, Beat, Frame, FrameType, WireError, read_beat, read_cursor, read_log
from quarry_mq.store.errors import Invalid, OffsetOutOfRange
from quarry_mq.store.follower import CopiedStore


class Intake:
    """The frames of one connection, put into the replica's store. Lives on the thread of the store."""

    def __init__(self, store: CopiedStore) -> None:
        """Begin a connection: what an earlier one left undone is sent again."""
        self._store = store
        store.drop_waiting()
        self.beat: Beat | None = None
        """The last beat of the primary."""

    def take(self, frame: Frame) -> None:
        """Take a frame. Nothing becomes visible before `commit`. Raises WireError, and what `CopiedStore` raises."""
        store, body = self._store, frame.body
        try:
            match frame.type:
                case FrameType.LOG:
                    offset, data = read_log(body)
                    store.receive(offset, data)
                case FrameType.STATE:
                    store.take(*read_cursor(body))
                case FrameType.BEAT:
                    self.beat = read_beat(body)
                    store.note_log_begin(self.beat.log_begin)
                    if self.beat.cursor.position >= 0:
                        store.reach(self.beat.cursor)
                case FrameType.ROWS:
                    store.take_rows(body)
                case FrameType.ROWS_END:
                    store.rows_end(read_cursor(body)[0])
                case FrameType.BYE:
                    raise WireError(f"the primary ended the connection: {bytes(body).decode(errors='replace')}")
                case _:
                    raise WireError(f"an unexpected frame {frame.type.name}")
        except (Invalid, OffsetOutOfRange) as cause:
            raise WireError(str(cause)) from cause

    def commit(self) -> Ack:
        """Make everything durable that was taken, let the queues have it, and return how far the store is.

        Raises what `CopiedStore.commit` raises.
        """
        store = self._store
        store.commit()
        if self.beat is not None:
            store.retire(self.beat.log_begin)
        cursor = store.cursor
        beat = 0 if self.beat is None else self.beat.number
        return Ack(beat, store.received_up_to, store.flushed_up_to, cursor.number, cursor.position)
