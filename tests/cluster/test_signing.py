"""A process without a key of the cluster is no member, whatever it says or has recorded."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quarry_mq.server.cluster.signing import DATE, DATE_TOLERANCE_S, SIGNATURE, ClusterKeys
from quarry_mq.server.errors import NotAMember
from quarry_mq.store.security.sealer import new_key

METHOD = "/quarry.cluster.v1.ClusterService/Exchange"
NOW_S = 1_700_000_000
OLD, NEW, OTHER = ClusterKeys([b"old"]), ClusterKeys([b"new", b"old"]), ClusterKeys([new_key()])


def signed(keys: ClusterKeys, body: bytes = b"body") -> dict[str, str]:
    return dict(keys.sign_call(METHOD, body, NOW_S))


@pytest.mark.parametrize(("caller", "called"), [(OLD, OLD), (OLD, NEW), (NEW, NEW)])
def test_a_call_and_its_answer_are_known_by_any_of_the_keys(caller: ClusterKeys, called: ClusterKeys) -> None:
    signature = called.check_call(METHOD, b"body", signed(caller), NOW_S + DATE_TOLERANCE_S)
    answer = dict(called.sign_answer(signature, b"answer"))
    if called is caller:
        caller.check_answer(signature, b"answer", answer)


STEPS = [ClusterKeys(keys) for keys in ([b"old"], [b"old", b"new"], [b"new", b"old"], [b"new"])]
"""The key files of a member while the key is changed, as docs/cluster.md says."""


@pytest.mark.parametrize(("before", "after"), list(pairwise(STEPS)))
def test_members_that_are_one_step_apart_in_a_change_of_the_key_take_calls_and_answers_of_each_other(
    before: ClusterKeys, after: ClusterKeys
) -> None:
    for caller, called in ((before, after), (after, before)):
        signature = called.check_call(METHOD, b"body", signed(caller), NOW_S)
        caller.check_answer(signature, b"answer", dict(called.sign_answer(signature, b"answer")))


@pytest.mark.parametrize(
    ("method", "body", "change"),
    [
        (METHOD, b"other", {}),
        ("/quarry.cluster.v1.ClusterService/Nudge", b"body", {}),
        (METHOD, b"body", {DATE: str(NOW_S + 1)}),
        (METHOD, b"body", {DATE: ""}),
        (METHOD, b"body", {DATE: "1e9"}),
        (METHOD, b"body", {DATE: "9" * 5_000}),
        (METHOD, b"body", {DATE: "٣"}),
        (METHOD, b"body", {SIGNATURE: ""}),
        (METHOD, b"body", {SIGNATURE: "ü"}),
    ],
)
def test_nothing_of_a_call_can_be_changed(method: str, body: bytes, change: dict[str, str]) -> None:
    with pytest.raises(NotAMember):
        OLD.check_call(method, body, {**signed(OLD), **change}, NOW_S)


def test_another_cluster_is_refused() -> None:
    with pytest.raises(NotAMember, match="not signed"):
        OLD.check_call(METHOD, b"body", signed(OTHER), NOW_S)
    with pytest.raises(NotAMember, match="not signed"):
        OLD.check_call(METHOD, b"body", {}, NOW_S)


@pytest.mark.parametrize("late_s", [DATE_TOLERANCE_S + 1, -DATE_TOLERANCE_S - 1])
def test_what_was_recorded_is_refused_later(late_s: int) -> None:
    with pytest.raises(NotAMember, match="check the clocks"):
        OLD.check_call(METHOD, b"body", signed(OLD), NOW_S + late_s)


def test_an_answer_to_another_call_is_none_to_this_one() -> None:
    first, second = (signed(OLD, body)[SIGNATURE] for body in (b"1", b"2"))
    answer = dict(OLD.sign_answer(first, b"answer"))
    OLD.check_answer(first, b"answer", answer)
    for signature, body, keys in ((second, b"answer", OLD), (first, b"other", OLD), (first, b"answer", OTHER)):
        with pytest.raises(NotAMember):
            keys.check_answer(signature, body, answer)
    with pytest.raises(NotAMember):
        OLD.check_answer(first, b"answer", {SIGNATURE: first})
