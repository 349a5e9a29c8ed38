"""The frames of unary calls found in one go by native code (`native/src/calls.rs`).

A scanner knows what the `HeadReader` of its connection has learned. It finds header blocks of which all is known to be
sound, and messages that are all of their request, each in one frame and uncompressed. Most calls consist of these two
frames, which follow each other unless the client writes from several threads.
"""

from __future__ import annotations

from typing import Protocol

RequestHead = tuple[bytes, dict[bytes, bytes]]
"""A checked request: its path, and its regular fields, of repeated names the last one. Their values may be Huffman
coded still (`header_blocks.text_of`). A plain tuple, because one is made per call.
"""

Found = tuple[int, RequestHead | None, int | None, int]
"""One frame, or the two of a call that is there whole: stream id, the head that the header block stands for, where the
message begins, without its prefix, and where the frames end. `None`: there is no such frame.
"""


class Scanner(Protocol):
    """Of one connection. What is learned is as in `HeadReader`."""

    def learn_run(self, block: bytes, path: bytes, fields: dict[bytes, bytes], /) -> None:
        """The block's start stands for the path and these fields. It takes no run that names a content length."""

    def forget_run(self, block: bytes, /) -> None: ...

    def learn_name(self, raw_name: bytes, name: bytes, /) -> None:
        """A field that is sound with any value. Without a name it is not kept."""

    def learn_field(self, raw_field: bytes, name: bytes, /) -> None:
        """A field that is sound with this value. Without a name it is not kept."""

    def scan(
        self,
        data: bytes,
        position: int,
        last_stream_id: int,
        frames_and_blocks_max: tuple[int, int],
        message_size_max: int,
        /,
    ) -> list[Found]:
        """What lies from `position` on, up to the first frame of anything else or that is not there whole."""


class ScannerMaker(Protocol):
    def __call__(self, block_size_max: int, huffman_coded: type[bytes], /) -> Scanner:
        """`huffman_coded` wraps values that are."""
