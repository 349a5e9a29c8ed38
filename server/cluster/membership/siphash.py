"""SipHash-2-4 (Aumasson and Bernstein, 2012) with the key that RocketMQ's clients use.

The Java and Go clients choose a queue for a message group by this hash of its name in UTF-8, modulo the number of
queues in the route. Python uses the function internally for its dictionaries, but does not expose it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

_KEY: Final = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
_BEGIN: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_WORD: Final = Struct("<Q")

_State = tuple[int, int, int, int]


def siphash(data: bytes) -> int:
    """Return the hash as an unsigned number of 64 bits."""
    low, high = _KEY
    state = (_BEGIN[0] ^ low, _BEGIN[1] ^ high, _BEGIN[2] ^ low, _BEGIN[3] ^ high)
    whole = len(data) & ~7
    for (word,) in _WORD.iter_unpack(data[:whole]):
        state = _compressed(state, word)
    state = _compressed(state, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    first, second, third, fourth = state[0], state[1], state[2] ^ 0xFF, state[3]
    for _ in range(4):
        first, second, third, fourth = _round(first, second, third, fourth)
    return first ^ second ^ third ^ fourth


def _compressed(state: _State, word: int) -> _State:
    first, second, third, fourth = state
    fourth ^= word
    for _ in range(2):
        first, second, third, fourth = _round(first, second, third, fourth)
    return first ^ word, second, third, fourth


def _round(first: int, second: int, third: int, fourth: int) -> _State:
    first = (first + second) & _MASK
    second = (second << 13 & _MASK | second >> 51) ^ first
    first = first << 32 & _MASK | first >> 32
    third = (third + fourth) & _MASK
    fourth = (fourth << 16 & _MASK | fourth >> 48) ^ third
    first = (first + fourth) & _MASK
    fourth = (fourth << 21 & _MASK | fourth >> 43) ^ first
    third = (third + second) & _MASK
    second = (second << 17 & _MASK | second >> 47) ^ third
    third = third << 32 & _MASK | third >> 32
    return first, second, third, fourth
