"""Who is asked to hold which message groups: a pure function of the members and their states.

A *view* is what a member knows of the cluster at a time: every member's name and state. Of its active members the one
whose hash together with the topic and the message group is highest owns the group ("rendezvous hashing", Thaler and
Ravishankar). So a member that comes takes its share from all others, one that goes leaves its own to all others, and
nothing else moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final

from server.cluster.member import MemberState

VIEW_ID_BYTES: Final = 16


@dataclass(frozen=True)
class View:
    """All known members by name, and whether each is active."""

    members: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, states: Mapping[str, MemberState]) -> View:
        return cls(tuple((name, state is MemberState.ACTIVE) for name, state in sorted(states.items())))

    @cached_property
    def active(self) -> tuple[str, ...]:
        return tuple(name for name, is_active in self.members if is_active)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        return tuple(name for name, is_active in self.members if not is_active)

    @cached_property
    def id(self) -> bytes:
        """`VIEW_ID_BYTES` that are the same on every member that has this view, and only there."""
        digest = blake2b(digest_size=VIEW_ID_BYTES)
        for name, is_active in self.members:
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded + (b"\1" if is_active else b"\0"))
        return digest.digest()

    def others(self, name: str) -> list[str]:
        """All members but this one."""
        return [each for each, _ in self.members if each != name]

    def owner(self, topic: str, message_group: str) -> str | None:
        """Who holds the group's messages in this view; None when nobody is active."""
        return owner_of(topic, message_group, self.active)


def owner_of(topic: str, key: str, names: Iterable[str]) -> str | None:
    """The name of highest hash for a key of a topic: 8 bytes of blake2b over key, topic and name, sizes before them."""
    seed = blake2b(digest_size=8)
    for part in (key.encode(), topic.encode()):
        seed.update(len(part).to_bytes(4, "big") + part)
    return max(names, key=lambda name: (_weight(seed, name), name), default=None)


def _weight(seed: blake2b, name: str) -> bytes:
    mine = seed.copy()
    mine.update(name.encode())
    return mine.digest()
