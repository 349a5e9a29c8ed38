"""Views of a cluster: each message group has one member."""

from __future__ import annotations

from collections import Counter

import pytest

from quarry_mq.server.cluster.membership import SLOTS, MemberState, View, siphash, slot_of


def view(*names: str, draining: tuple[str, ...] = ()) -> View:
    return View.of({**dict.fromkeys(names, MemberState.ACTIVE), **dict.fromkeys(draining, MemberState.DRAINING)})


def members(count: int) -> list[str]:
    return [f"quarry-{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "310e0edd47db6f72"), (1, "fd67dc93c539f874"), (7, "37d1018bf50002ab"), (8, "6224939a79f5f593")],
)
def test_the_hash_is_that_of_its_authors(size: int, expected: str) -> None:
    """Vectors of the paper's reference code, which are for the same key."""
    assert siphash(bytes(range(size))).to_bytes(8, "little").hex() == expected


def test_a_group_is_where_clients_look_for_it() -> None:
    """Java's client takes the hash with its sign, Go's without: in a list of 128 it is the same place."""
    for number in range(1_000):
        found = siphash(f"group-{number}".encode())
        signed = found - (1 << 64) if found >> 63 else found
        assert slot_of(f"group-{number}") == signed % 128 == found % 128


@pytest.mark.parametrize("count", [1, 2, 3, 8, 50])
def test_each_has_its_share(count: int) -> None:
    owned = Counter(view(*members(count)).owners)
    assert set(owned) == set(members(count))
    assert max(owned.values()) <= -(-SLOTS // count)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
def test_little_moves_but_to_who_comes(count: int) -> None:
    before, after = view(*members(count)).owners, view(*members(count + 1)).owners
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    newcomer = members(count + 1)[-1]
    assert sum(new == newcomer for _, new in moved) == Counter(after)[newcomer]
    assert sum(new != newcomer for _, new in moved) <= SLOTS // 4


def test_who_drains_owns_nothing() -> None:
    assert view("a", "b", draining=("c",)).owners == view("a", "b").owners
    assert view(draining=("a",)).owners == ()


def test_views_are_told_apart_by_names_and_states() -> None:
    views = [view("a"), view("a", "b"), view("ab"), view("a", draining=("b",)), view(draining=("a", "b"))]
    assert len({each.id for each in views}) == len(views)
    assert view("a", "b").id == view("b", "a").id
