"""A mark on a header's value. Apart, because a compiled module can have no subclass of `bytes` (ADR 46)."""

from __future__ import annotations


class HuffmanCoded(bytes):
    """A value as it lies in the block, to be decoded when somebody asks for it: 40 ns per byte, often for nobody."""

    __slots__ = ()
