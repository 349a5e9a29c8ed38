"""Topics are at the broker what resources declare."""

from __future__ import annotations

from typing import Any

import pytest

from quarry_mq.cli.operator.kubernetes import Kubernetes
from quarry_mq.cli.operator.resources import BREAK_ORDER, DELETE_MESSAGES, DRIFTED, FINALIZER, TOPIC
from quarry_mq.client.admin import AsyncAdminClient
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from tests.e2e.broker import Broker
from tests.operator.bench import Bench, consume, run, send
from tests.operator.conftest import OpenBench
from tests.operator.fake_api import FakeApi


async def exists(admin: AsyncAdminClient, name: str) -> bool:
    return name in [each.name async for each in admin.topics(name)]


async def change_by_hand(bench: Bench, name: str, **fields: Any) -> None:
    await bench.call("AdminService/UpdateTopic", pb.UpdateTopicRequest(name=name, **fields))


def test_a_topic_is_made_as_declared(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            spec = {"name": name, "type": "fifo", "queues": 3, "permission": "read", "attributes": {"owner": "shop"}}
            await bench.declare(TOPIC, "orders", spec)
            resource = await bench.ready(TOPIC, "orders")
            topic = await bench.admin.topic(name)
            assert (topic.type, topic.read_queues, topic.write_queues) == (pb.TOPIC_TYPE_FIFO, 3, 3)
            assert topic.permission == pb.PERMISSION_READ
            assert dict(topic.attributes) == {"owner": "shop"}
            assert resource.condition(DRIFTED)["status"] == "False"
            assert not resource.finalizers
            await bench.told("orders", "Created")

    run(scenario())


def test_a_topic_has_the_name_of_its_resource_and_the_broker_s_defaults(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {})
            await bench.ready(TOPIC, name)
            topic = await bench.admin.topic(name)
            assert (topic.type, topic.write_queues) == (pb.TOPIC_TYPE_NORMAL, 8)

    run(scenario())


def test_a_topic_that_is_there_with_these_settings_is_taken_silently(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.admin.create_topic(name, queues=5, attributes={"owner": "shop"})
            await bench.declare(TOPIC, name, {"queues": 5})
            await bench.ready(TOPIC, name)
            await bench.told(name)

    run(scenario())


def test_a_topic_that_is_there_with_other_settings_is_changed_only_when_it_is_adopted(
    open_bench: OpenBench, name: str
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.admin.create_topic(name, queues=5)
            await bench.declare(TOPIC, name, {"queues": 6, "deletionPolicy": "Delete"})
            message = await bench.not_ready(TOPIC, name, "AlreadyExists")
            assert "queues: 5 at the broker, 6 declared" in message
            assert (await bench.admin.topic(name)).write_queues == 5
            await bench.change(TOPIC, name, {"adopt": True})
            await bench.ready(TOPIC, name)
            assert (await bench.admin.topic(name)).write_queues == 6
            await bench.told(name, "AlreadyExists", "Adopted")

    run(scenario())


def test_a_topic_of_somebody_else_is_not_deleted_with_a_resource_that_never_had_it(
    open_bench: OpenBench, name: str
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.admin.create_topic(name, queues=5)
            await bench.declare(TOPIC, name, {"queues": 6, "deletionPolicy": "Delete"})
            await bench.not_ready(TOPIC, name, "AlreadyExists")
            await bench.delete(TOPIC, name)
            await bench.gone(TOPIC, name)
            assert await exists(bench.admin, name)

    run(scenario())


def test_a_changed_declaration_is_applied_and_attributes_that_left_it_are_removed(
    open_bench: OpenBench, name: str
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 2, "attributes": {"owner": "shop", "cost": "7"}})
            await bench.ready(TOPIC, name)
            await change_by_hand(bench, name, attributes={"by-hand": "stays"})
            await bench.change(TOPIC, name, {"queues": 4, "attributes": {"owner": "till", "cost": None}})
            resource = await bench.ready(TOPIC, name)
            topic = await bench.admin.topic(name)
            assert (topic.read_queues, topic.write_queues) == (4, 4)
            assert dict(topic.attributes) == {"owner": "till", "by-hand": "stays"}
            assert resource.status["applied"] == {"queues": 4, "attributes.owner": "till"}
            await bench.told(name, "Created", "Changed")

    run(scenario())


def test_fewer_queues_hide_no_messages(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 4})
            await bench.ready(TOPIC, name)
            await bench.change(TOPIC, name, {"queues": 2})
            await bench.ready(TOPIC, name)
            topic = await bench.admin.topic(name)
            assert (topic.read_queues, topic.write_queues) == (4, 2)
            await bench.looked(TOPIC)
            await bench.told(name, "Created", "Changed")

    run(scenario())


def test_a_change_by_hand_is_put_right_and_told(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 4, "permission": "read-write"})
            await bench.ready(TOPIC, name)
            await change_by_hand(bench, name, permission=pb.PERMISSION_READ)
            corrected = await bench.until(TOPIC, name, lambda each: each.condition(DRIFTED)["reason"] == "Corrected")
            assert corrected.condition(DRIFTED)["status"] == "False"
            assert (
                corrected.condition(DRIFTED)["message"]
                == "put right: permission: read at the broker, read-write declared"
            )
            assert (await bench.admin.topic(name)).permission == pb.PERMISSION_READ_WRITE
            await bench.looked(TOPIC)
            await bench.told(name, "Created", "Corrected")

    run(scenario())


def test_a_change_by_hand_is_only_told_where_that_is_wanted(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 4, "permission": "read-write", "driftPolicy": "Report"})
            await bench.ready(TOPIC, name)
            await change_by_hand(bench, name, permission=pb.PERMISSION_READ)
            drifted = await bench.until(TOPIC, name, lambda each: each.condition(DRIFTED)["status"] == "True")
            assert "permission: read at the broker, read-write declared" in drifted.condition(DRIFTED)["message"]
            await bench.not_ready(TOPIC, name, "Drifted")
            # another part of the declaration is applied all the same, and the drift stays
            await bench.change(TOPIC, name, {"queues": 5})
            await bench.until(TOPIC, name, lambda each: each.status["applied"]["queues"] == 5)
            topic = await bench.admin.topic(name)
            assert (topic.write_queues, topic.permission) == (5, pb.PERMISSION_READ)
            await change_by_hand(bench, name, permission=pb.PERMISSION_READ_WRITE)
            healed = await bench.ready(TOPIC, name)
            assert healed.condition(DRIFTED)["status"] == "False"
            await bench.told(name, "Created", "Drifted", "Changed")

    run(scenario())


@pytest.mark.parametrize("policy", ["Correct", "Report"])
def test_a_topic_that_was_deleted_by_hand_is_drift(policy: str, open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 3, "driftPolicy": policy})
            await bench.ready(TOPIC, name)
            await bench.admin.delete_topic(name)
            if policy == "Report":
                assert "deleted at the broker" in await bench.not_ready(TOPIC, name, "Drifted")
                assert not await exists(bench.admin, name)
                return
            corrected = await bench.until(TOPIC, name, lambda each: each.condition(DRIFTED)["reason"] == "Corrected")
            assert corrected.condition(DRIFTED)["message"] == "created again after a deletion at the broker"
            assert (await bench.admin.topic(name)).write_queues == 3

    run(scenario())


def test_what_the_broker_refuses_is_told_and_stops_no_other_topic(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, "a-bad-one", {"name": "TBW102", "deletionPolicy": "Delete"})
            assert "reserved for the broker" in await bench.not_ready(TOPIC, "a-bad-one", "Refused")
            await bench.declare(TOPIC, name, {})
            await bench.ready(TOPIC, name)
            refused = await bench.until(TOPIC, "a-bad-one", lambda each: not each.finalizers)
            assert "applied" not in refused.status
            await bench.looked(TOPIC)
            await bench.told("a-bad-one", "Refused")

    run(scenario())


def test_two_resources_cannot_declare_one_topic(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, "first", {"name": name, "queues": 2, "deletionPolicy": "Delete"})
            await bench.ready(TOPIC, "first")
            await bench.declare(TOPIC, "second", {"name": name, "queues": 3, "deletionPolicy": "Delete"})
            assert "first declares" in await bench.not_ready(TOPIC, "second", "DeclaredTwice")
            await bench.delete(TOPIC, "second")
            await bench.gone(TOPIC, "second")
            assert (await bench.admin.topic(name)).write_queues == 2

    run(scenario())


def test_a_topic_stays_when_its_resource_goes(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {})
            await bench.ready(TOPIC, name)
            await bench.delete(TOPIC, name)
            await bench.gone(TOPIC, name)
            assert await exists(bench.admin, name)

    run(scenario())


def test_a_topic_goes_with_its_resource_when_nothing_is_lost(open_bench: OpenBench, name: str, broker: Broker) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 1, "deletionPolicy": "Delete"})
            resource = await bench.ready(TOPIC, name)
            assert FINALIZER in resource.finalizers
            await bench.admin.create_group(f"{name}-readers")
            await send(broker.endpoint, name)
            await bench.delete(TOPIC, name)
            message = await bench.not_ready(TOPIC, name, "MessagesNotConsumed")
            assert "no group has read its 1 messages" in message
            await consume(broker.endpoint, name, f"{name}-readers")
            await bench.gone(TOPIC, name)
            assert not await exists(bench.admin, name)
            await bench.told(name, "Created", "MessagesNotConsumed", "Deleted")

    run(scenario())


def test_unread_messages_of_a_group_are_kept_until_the_annotation_gives_them_up(
    open_bench: OpenBench, name: str, broker: Broker
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 1, "deletionPolicy": "Delete"})
            await bench.ready(TOPIC, name)
            await bench.admin.create_group(f"{name}-readers")
            await send(broker.endpoint, name)
            await consume(broker.endpoint, name, f"{name}-readers")
            await send(broker.endpoint, name)
            await bench.delete(TOPIC, name)
            message = await bench.not_ready(TOPIC, name, "MessagesNotConsumed")
            assert f"group {name}-readers has 1 messages to consume" in message
            assert DELETE_MESSAGES in message
            await bench.annotate(TOPIC, name, DELETE_MESSAGES)
            await bench.gone(TOPIC, name)
            assert not await exists(bench.admin, name)

    run(scenario())


def test_a_delayed_message_keeps_its_topic(open_bench: OpenBench, name: str, broker: Broker) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"type": "delay", "deletionPolicy": "Delete"})
            await bench.ready(TOPIC, name)
            started_ms = (await bench.call("AdminService/GetBroker", pb.GetBrokerRequest())).started_at_ms
            await send(broker.endpoint, name, deliver_at_ms=started_ms + 20 * 3_600_000)
            await bench.delete(TOPIC, name)
            assert "delayed messages" in await bench.not_ready(TOPIC, name, "MessagesNotConsumed")
            await bench.annotate(TOPIC, name, DELETE_MESSAGES)
            await bench.gone(TOPIC, name)

    run(scenario())


def test_a_policy_that_changes_changes_what_the_deletion_does(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"deletionPolicy": "Delete"})
            await bench.until(TOPIC, name, lambda each: FINALIZER in each.finalizers)
            await bench.change(TOPIC, name, {"deletionPolicy": "Retain"})
            await bench.until(TOPIC, name, lambda each: FINALIZER not in each.finalizers)
            await bench.delete(TOPIC, name)
            await bench.gone(TOPIC, name)
            assert await exists(bench.admin, name)

    run(scenario())


def test_order_is_broken_only_with_the_annotation(open_bench: OpenBench, name: str, broker: Broker) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"type": "fifo", "queues": 2})
            await bench.ready(TOPIC, name)
            await bench.admin.create_group(f"{name}-readers", fifo=True)
            await send(broker.endpoint, name, message_group="one")
            await consume(broker.endpoint, name, f"{name}-readers")
            await send(broker.endpoint, name, message_group="one")
            await bench.change(TOPIC, name, {"queues": 4})
            assert "order" in await bench.not_ready(TOPIC, name, "Refused")
            await bench.annotate(TOPIC, name, BREAK_ORDER)
            await bench.ready(TOPIC, name)
            assert (await bench.admin.topic(name)).write_queues == 4

    run(scenario())


@pytest.mark.parametrize("is_made", [False, True])
def test_an_operator_that_ended_in_the_middle_of_a_creation_goes_on(
    is_made: bool, open_bench: OpenBench, name: str
) -> None:
    """Before the topic was made, and after that, while the status does not have its settings yet."""

    async def scenario() -> None:
        async with open_bench() as bench:
            await bench.declare(TOPIC, name, {"queues": 3, "driftPolicy": "Report"})
            resource = await bench.find(TOPIC, name)
            assert resource is not None
            await Kubernetes(bench.client).write_status(resource, {"status": {"applied": {}}})
            if is_made:
                await bench.admin.create_topic(name, queues=2)
            async with bench.operating():
                await bench.ready(TOPIC, name)
                assert (await bench.admin.topic(name)).write_queues == 3

    run(scenario())


@pytest.mark.parametrize("open_bench", ["fake"], indirect=True)
def test_nothing_is_written_while_nothing_changes(open_bench: OpenBench, name: str, fake_api: FakeApi) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"deletionPolicy": "Delete"})
            before = await bench.ready(TOPIC, name)
            await bench.looked(TOPIC)
            written = len(fake_api.requests)
            await bench.looked(TOPIC, 5)
            after = await bench.find(TOPIC, name)
            assert after is not None
            assert after.version == before.version
            assert len(fake_api.requests) == written
            await bench.told(name, "Created")

    run(scenario())
