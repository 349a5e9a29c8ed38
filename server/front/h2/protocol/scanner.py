"""The interface of the native scanner (`native/src/calls.rs`), which finds the frames of unary calls in one pass.

A scanner knows what the `HeadReader` of its connection has learned. It finds header blocks that are known to be valid
as a whole, and messages that are all of their request, each in one frame and uncompressed. Most calls consist of these
two frames, which follow each other unless the client writes from several threads.
"""

from __future__ import annotations

from typing import Protocol

RequestHead = tuple[bytes, dict[bytes, bytes]]
"""A checked request: its path and its regular fields, the last one of each repeated name.

The values may still be Huffman coded (`header_blocks.text_of`). It is a plain tuple, because one is created per call.
"""

Found = tuple[int, RequestHead | None, int | None, int]
"""A frame, or the two frames of a complete call.

The items are the stream id, the head that the header block stands for, the position of the message without its prefix,
and the end of the frames. None stands for a missing frame.
"""


class Scanner(Protocol):
    """The scanner of one connection. It learns as `HeadReader` does."""

    def learn_run(self, block: bytes, path: bytes, fields: dict[bytes, bytes], /) -> None:
        """Learn that this start of a block stands for the path and these fields. A run with a content length is not
        taken.
        """

    def evict_run(self, block: bytes, /) -> None: ...

    def learn_name(self, raw_name: bytes, name: bytes, /) -> None:
        """Learn a field that is valid with any value. Without a name it is not kept."""

    def learn_field(self, raw_field: bytes, name: bytes, /) -> None:
        """Learn a field that is valid with this value. Without a name it is not kept."""

    def scan(
        self,
        data: bytes,
        position: int,
        last_stream_id: int,
        frames_and_blocks_max: tuple[int, int],
        message_size_max: int,
        /,
    ) -> list[Found]:
        """Return the calls from `position` on, up to the first frame of another kind or the first incomplete one."""


class ScannerMaker(Protocol):
    def __call__(self, block_size_max: int, huffman_coded: type[bytes], /) -> Scanner:
        """Return a scanner. `huffman_coded` is the type that wraps Huffman-coded values."""
