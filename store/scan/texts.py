"""Short texts of many records: copied out at once, and told apart."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.scan.columns import Bytes, Integers

_COMPARED: Final = 4
"""Texts of one length that are told apart by comparing all with each; what is left goes through a dict."""


def pieces(octets: Bytes, starts: Integers, length: int) -> NDArray[np.void]:
    """Copies of the `length` bytes at each of the starts: shape (n,), dtype void, to be viewed as what they hold."""
    count = max(len(octets) - length + 1, 0)
    # plain bytes: numpy copies structures field by field, which takes twenty times as long
    all_pieces: NDArray[np.void] = np.ndarray(count, f"V{length}", octets, strides=(1,))
    return all_pieces[starts]


def distinct(octets: Bytes, starts: Integers, lengths: Integers) -> tuple[list[bytes], Integers]:
    """The distinct ones of n texts of at least one byte, and which of them each is: shape (n,)."""
    numbers: dict[bytes, int] = {}
    index = np.zeros(len(starts), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        texts = pieces(octets, starts[rows], length)
        for _ in range(_COMPARED):
            if not len(rows):
                break
            same = texts == texts[0]
            index[rows[same]] = numbers.setdefault(texts[0].tobytes(), len(numbers))
            rows, texts = rows[~same], texts[~same]
        index[rows] = [numbers.setdefault(text, len(numbers)) for text in texts.tolist()]
    return list(numbers), index
