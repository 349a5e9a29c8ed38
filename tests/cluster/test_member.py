"""A member's description of itself is kept as a row that all members read, also of another version."""

from __future__ import annotations

import json

import pytest

from quarry_mq.server.addresses import Address
from quarry_mq.server.cluster.membership import TEXT_MAX, Member, MemberState
from quarry_mq.store.errors import Invalid, StoreDamaged

MEMBER = Member(
    name="quarry-0",
    address="10.0.0.1:8081",
    tls_address="[2001:db8::1]:8443",
    admin_address="quarry-0.members:8082",
    state=MemberState.DRAINING,
    version="0.9.1",
)


@pytest.mark.parametrize("member", [MEMBER, Member(name="a", address=None, tls_address=None, admin_address="a:1")])
def test_a_row_is_read_as_it_was_written(member: Member) -> None:
    assert Member.decode(member.name, member.encode()) == member


def test_clients_are_sent_where_they_get_in() -> None:
    assert MEMBER.advertised_to(is_secure=False) == Address("10.0.0.1", 8081)
    assert MEMBER.advertised_to(is_secure=True) == Address("2001:db8::1", 8443)
    assert Member(name="a", address=None, tls_address="a:1", admin_address="a:2").advertised_to(is_secure=False) is None


def test_what_a_newer_version_adds_is_passed_over() -> None:
    row = json.loads(MEMBER.encode()) | {"zone": "b"}
    assert Member.decode("quarry-0", json.dumps(row).encode()) == MEMBER


def test_nothing_new_is_sent_to_a_member_in_a_state_that_only_a_newer_version_knows() -> None:
    row = json.loads(MEMBER.in_state(MemberState.ACTIVE).encode()) | {"state": "asleep"}
    assert Member.decode("quarry-0", json.dumps(row).encode()).state is MemberState.DRAINING


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": 7}, "state"),
        ({"address": 7}, "address"),
        ({"address": "nowhere"}, "address"),
        ({"tls_address": "a:99999"}, "tls_address"),
        ({"admin_address": ""}, "admin_address"),
        ({"version": "1" * (TEXT_MAX + 1)}, "version has more than"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(change: dict[str, object], reason: str) -> None:
    row = json.loads(MEMBER.encode()) | change
    with pytest.raises((Invalid, StoreDamaged), match=reason):
        Member.decode("quarry-0", json.dumps(row).encode())
