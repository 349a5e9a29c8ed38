"""Computes which member owns which message groups: a pure function of the members and their states.

A *view* is what a member knows of the cluster at a time: every member's name and state. Message groups are divided into
`SLOTS` slots by the hash with which RocketMQ's Java and Go clients choose a queue. The owner of a slot is, among the
active members that do not have their full share yet, the one with the highest hash of slot and name together
("rendezvous hashing", Thaler and Ravishankar). So a member that joins takes its share from all others, one that leaves
gives its own to all others, and little else moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Final

from quarry_mq.server.cluster.membership.member import MemberState
from quarry_mq.server.cluster.membership.siphash import siphash

VIEW_ID_BYTES: Final = 16
SLOTS: Final = 128
"""Number of slots. A power of two, since clients take the hash with a sign or without."""

RULE: Final = b"slots 1"
"""Name of the rule; members that would divide groups by different rules are never in one view."""


@dataclass(frozen=True)
class View:
    """Hold all known members by name, and whether each of them is active."""

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
        """`VIEW_ID_BYTES` that are the same on every member that has this view, and on no other."""
        digest = blake2b(digest_size=VIEW_ID_BYTES, person=RULE)
        for name, is_active in self.members:
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(4, "big") + encoded + (b"\1" if is_active else b"\0"))
        return digest.digest()

    def others(self, name: str) -> list[str]:
        """Return the names of all members but this one."""
        return [each for each, _ in self.members if each != name]

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The owner of each slot; empty when no member is active."""
        if not self.active:
            return ()
        share, more = divmod(SLOTS, len(self.active))
        left = dict.fromkeys(self.active, share + 1 if more else share)
        owners = []
        for slot in range(SLOTS):
            owner = max((name for name in self.active if left[name]), key=partial(_weight, slot))
            left[owner] -= 1
            owners.append(owner)
            if more and not left[owner]:
                more -= 1
                if not more:  # no further member may have one slot more than the others
                    left = {name: max(0, each - 1) for name, each in left.items()}
        return tuple(owners)


def slot_of(message_group: str) -> int:
    """Return the slot of a group: the index that RocketMQ's Java and Go clients choose among `SLOTS` queues."""
    return siphash(message_group.encode()) % SLOTS


def _weight(slot: int, name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8, salt=slot.to_bytes(4, "big")).digest()
