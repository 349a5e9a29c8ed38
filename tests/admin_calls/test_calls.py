"""Every call of the admin port: good, about something that is not there, malformed, and by who may not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.server import REQUEST_SIZE_MAX
from tests.admin_calls.bench import METHODS, Bench, Ending, running_bench
from tests.admin_calls.rows import Code, Elsewhere, Never, Refusal, Row, SuperUsers, Unseen, request_of
from tests.admin_calls.table import NOT_FOR_OPERATORS, TABLE

DENIALS: Final = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
REFUSALS: Final = [
    pytest.param(path, refusal, id=f"{path.rpartition('.')[2]}-{kind}-{number}")
    for path, row in TABLE.items()
    for kind in ("missing", "malformed")
    if not isinstance(case := getattr(row, kind), Never)
    for number, refusal in enumerate(case)
]
GOOD: Final = [path for path, row in TABLE.items() if not isinstance(row.holds, Elsewhere)]


class Benches:
    """The two brokers; each is started when it is needed."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._ending = ExitStack()
        self._runner = self._ending.enter_context(asyncio.Runner())
        self._running: dict[bool, Bench] = {}

    def of(self, row: Row) -> Bench:
        return self.other if row.on_other_broker else self.alone

    @property
    def alone(self) -> Bench:
        return self._bench(is_other=False)

    @property
    def other(self) -> Bench:
        return self._bench(is_other=True)

    def _bench(self, *, is_other: bool) -> Bench:
        if is_other not in self._running:
            starting = running_bench(self._runner, self._factory.mktemp("bench"), is_other=is_other)
            self._running[is_other] = self._ending.enter_context(starting)
        return self._running[is_other]

    def close(self) -> None:
        self._ending.close()


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    benches = Benches(tmp_path_factory)
    try:
        yield benches
    finally:
        benches.close()


def said(ending: Ending) -> tuple[Code, str]:
    """The code and the text that a call ended with, wherever they are said."""
    if ending.code is grpc.StatusCode.OK and ending.answers:
        status = getattr(ending.answers[0], "status", None)
        if isinstance(status, definition.Status):
            return status.code, status.message
    return ending.code, ending.text


@pytest.mark.parametrize("path", GOOD)
def test_a_good_call_is_answered(path: str, benches: Benches) -> None:
    row = TABLE[path]
    bench = benches.of(row)
    ending = bench.call(path, request_of(path, row, row.prepared, bench=bench))
    assert ending.code is grpc.StatusCode.OK, ending
    assert not isinstance(row.holds, Elsewhere)
    assert row.holds(ending.answers if METHODS[path].server_streaming else ending.answers[0]), ending.answers


@pytest.mark.parametrize(("path", "refusal"), REFUSALS)
def test_a_refusal_names_what_is_wrong_and_changes_nothing(path: str, refusal: Refusal, benches: Benches) -> None:
    bench = benches.of(TABLE[path])
    request = request_of(path, TABLE[path], refusal.change, bench=bench)
    before = bench.state()
    code, text = said(bench.call(path, request))
    assert (code, refusal.text in text) == (refusal.code, True), (code, text)
    assert text.isprintable()
    assert bench.state() == before


@pytest.mark.parametrize("path", TABLE)
def test_who_is_nobody_and_who_lacks_a_right_is_refused(path: str, benches: Benches) -> None:
    row = TABLE[path]
    bench = benches.of(row)
    request = request_of(path, row, row.asked, bench=bench)
    before = bench.state()
    ending = bench.call(path, request, user=None)
    assert ending.code is grpc.StatusCode.UNAUTHENTICATED
    assert "the call is not signed" in ending.text
    assert bench.state() == before
    if isinstance(row.needs, SuperUsers):
        everything = "* pub sub create update delete get list"
        ending = bench.call(path, request, user=bench.user(everything))
        assert (ending.code, "only super users may" in ending.text) == (grpc.StatusCode.PERMISSION_DENIED, True), ending
        return
    if isinstance(row.needs, Unseen):
        ending = bench.call(path, request_of(path, row, row.prepared, bench=bench), user=bench.user())
        assert row.needs.holds(ending), ending
        return
    for each in row.needs:
        others = [rule for rule in row.needs if rule is not each]
        user = bench.user(*others)
        before = bench.state()
        ending = bench.call(path, request, user=user)
        assert ending.code is grpc.StatusCode.PERMISSION_DENIED, (each, ending)
        assert denial(user, each) in ending.text
        assert bench.state() == before
    assert bench.call(path, request, user=bench.user(*row.needs)).code not in DENIALS


def denial(user: str, rule: str) -> str:
    resource, action = rule.split()
    kind, _, name = resource.partition(":")
    return f"user {user} may not {action} on {kind} {name}"


@pytest.mark.parametrize("path", TABLE)
def test_what_is_no_request_is_refused_as_such(path: str, benches: Benches) -> None:
    bench = benches.of(TABLE[path])
    before = bench.state()
    ending = bench.call(path, b"\xff\xff")
    name = METHODS[path].input_type.full_name
    assert (ending.code, ending.text) == (grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {name}")
    assert bench.state() == before


@pytest.mark.parametrize("path", {path.partition("/")[0]: path for path in TABLE}.values())
def test_a_request_that_is_too_large_is_refused_by_its_size(path: str, benches: Benches) -> None:
    """The port refuses the call, before any service has it."""
    ending = benches.alone.call(path, b"\0" * (REQUEST_SIZE_MAX + 1))
    assert ending.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(REQUEST_SIZE_MAX) in ending.text


def test_the_services_that_are_served_are_those_of_the_table(benches: Benches) -> None:
    for bench in (benches.alone, benches.other):
        method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        served = bench.run(listed(bench.channel, bench.signed(method)))
        assert served - set(NOT_FOR_OPERATORS) == {path.partition("/")[0] for path in TABLE}


async def listed(channel: Any, headers: Any) -> set[str]:
    look: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = [each async for each in look.ServerReflectionInfo(iter([request]), metadata=headers)]
    return {each.name for each in answer.list_services_response.service}


def test_outside_of_a_cluster_its_members_are_not_asked_for(benches: Benches) -> None:
    for path in TABLE:
        if path.startswith("quarry.admin.v1.MembersService/"):
            ending = benches.alone.call(path, request_of(path, TABLE[path], bench=benches.alone))
            assert ending.code is grpc.StatusCode.FAILED_PRECONDITION
            assert "cluster.members" in ending.text
