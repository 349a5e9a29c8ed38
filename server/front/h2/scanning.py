"""Whole unary calls found in one go by native code. What it is: `native/src/calls.rs`; what it must agree with: here.

A scanner knows what the `HeadReader` of its connection has learned. It finds calls whose header block is known to be
sound and whose one message follows at once, in one frame and uncompressed; most calls are like that.
"""

from __future__ import annotations

from typing import Protocol

FoundCall = tuple[int, bytes, dict[bytes, bytes], int, int]
"""Stream id, path, fields, and where the message lies without its prefix."""


class Scanner(Protocol):
    """Of one connection. What is learned is as in `HeadReader`."""

    def learn_run(self, block: bytes, path: bytes, fields: dict[bytes, bytes], /) -> None:
        """The block's start stands for the path and these fields. It takes no run that names a content length."""

    def forget_run(self, block: bytes, /) -> None: ...

    def learn_name(self, raw_name: bytes, name: bytes, /) -> None:
        """A field that is sound with any value."""

    def learn_field(self, raw_field: bytes, name: bytes, /) -> None:
        """A field that is sound with this value."""

    def scan(
        self, data: bytes, position: int, last_stream_id: int, calls_max: int, message_size_max: int, /
    ) -> list[FoundCall]:
        """The calls from `position` on, up to the first frame of anything else."""


class ScannerMaker(Protocol):
    def __call__(self, block_size_max: int, huffman_coded: type[bytes], /) -> Scanner:
        """`huffman_coded` wraps values that are."""
