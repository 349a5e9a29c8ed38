"""The conformance list of the remoting protocol: each point with the tests that check it, and the rest of those tests.

A point says what a client of RocketMQ 4 must be able to count on. `test_every_point_is_checked` fails when a test that
is named here is gone, or when a point has neither a test nor a reason.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.remoting.batches import BatchedMessage
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import write_command
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import Group, TopicType
from quarry_mq.store.record import StoredMessage, parse_offset_message_id
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.conformance.test_delay import with_an_old_segment
from tests.remoting.client import (
    RemotingClient,
    heartbeat_body,
    join_batch,
    records_in,
    send_fields,
)
from tests.remoting.conftest import Serve, address_of
from tests.remoting.test_java_clients import SCENARIOS, SINCE_5
from tests.remoting.test_tools import COMMANDS


class Point(NamedTuple):
    """A point of the list. Tests are named `module.function`, scenarios of the Java clients `java.name`, and commands
    of mqadmin `mqadmin.name`. `reason` says what of the point is not checked, and why.
    """

    promise: str
    tests: str
    reason: str = ""


BROWSER: Final = "The dashboard's pages are asked for what they show; no test opens them in a browser."

POINTS: Final[dict[int, Point]] = {
    # frames and connections
    1: Point("Frames may come together or in pieces", "protocol.requests_in_one_segment_and_in_two_hundred_pieces"),
    2: Point(
        "A frame that cannot be read ends its connection alone",
        "protocol.what_cannot_be_read_ends_the_connection_alone",
    ),
    3: Point(
        "A oneway request has no answer",
        "protocol.a_oneway_request_is_never_answered_and_unknown_answers_are_ignored",
    ),
    4: Point(
        "An unknown code is answered with 3",
        "protocol.a_oneway_request_is_never_answered_and_unknown_answers_are_ignored",
    ),
    5: Point(
        "Both serializations are read",
        "frames.both_forms_are_those_of_rocketmq protocol.the_answer_has_the_serialization_of_the_request",
    ),
    6: Point(
        "Java clients work with the binary header",
        "java_clients.a_client_does_the_same_with_binary_headers_and_with_tls",
    ),
    7: Point(
        "Java clients work with TLS; where TLS is required, plain text is refused",
        "java_clients.a_client_does_the_same_with_binary_headers_and_with_tls "
        "points.plain_text_is_refused_where_tls_is_required",
    ),
    8: Point("Both protocols share a port", "protocol.both_protocols_share_the_messaging_port"),
    9: Point(
        "A silent connection is closed, one with heartbeats is not",
        "protocol.a_silent_connection_is_closed_and_one_with_heartbeats_is_not",
    ),
    10: Point(
        "Answers that nobody waits for are ignored",
        "protocol.a_oneway_request_is_never_answered_and_unknown_answers_are_ignored",
    ),
    11: Point(
        "The queues of a client that dies go to the others",
        "messages.consumers_are_told_of_each_other model.random_histories_break_no_promise",
    ),
    12: Point(
        "A broker that dies loses no answered send, and clients go on",
        "model.random_histories_break_no_promise",
    ),
    # the name server's role
    13: Point("topicRoute shows a topic as it was made", "mqadmin.topicRoute messages.the_name_servers_role"),
    14: Point(
        "A producer's topic is made where that is allowed",
        "messages.what_may_not_be_sent_is_refused_with_rocketmqs_codes "
        "messages.a_topic_is_not_made_where_that_is_not_allowed",
    ),
    15: Point("Clients for Go find routes", "go_client.producers_and_a_push_consumer"),
    16: Point("clusterList of both versions ends without an exception", "mqadmin.clusterList"),
    17: Point("Tools list topics and clusters", "mqadmin.topicList mqadmin.topicClusterList"),
    18: Point(
        "All members are in routes; one that drains is read only, a dead one disappears",
        "messages.all_members_of_a_cluster_are_in_its_routes",
    ),
    19: Point("A deleted topic has no route", "points.what_is_deleted_is_gone_from_routes mqadmin.deleteTopic"),
    20: Point(
        "Settings of a name server are refused, but deletions by tools succeed",
        "messages.settings_of_a_name_server_are_not_kept points.what_is_deleted_is_gone_from_routes "
        "mqadmin.deleteSubGroup",
    ),
    # sends
    21: Point(
        "Sends of all kinds have queues, offsets and ids",
        "java.sends messages.a_send_is_stored_in_the_queue_that_its_client_names",
    ),
    22: Point("A chosen queue is the queue, in order", "java.sends java.order"),
    23: Point(
        "A batch is stored in order, with an id for each message",
        "java.batch messages.a_batch_is_stored_in_order_and_taken_apart",
    ),
    24: Point(
        "4 MiB pass, a byte more does not",
        "java.large messages.what_may_not_be_sent_is_refused_with_rocketmqs_codes",
    ),
    25: Point(
        "Properties come back as they were sent, and are limited",
        "points.properties_come_back_as_they_were_sent messages.what_may_not_be_sent_is_refused_with_rocketmqs_codes",
    ),
    26: Point(
        "Compressed bodies arrive plain, by gRPC too",
        "java.large foreign_messages.bodies_that_remoting_producers_compressed_are_plain",
    ),
    27: Point(
        "Wrong queues, closed topics and illegal names are refused",
        "messages.what_may_not_be_sent_is_refused_with_rocketmqs_codes",
    ),
    28: Point(
        "Flag, time and host of birth are the sender's",
        "messages.a_send_is_stored_in_the_queue_that_its_client_names points.the_host_of_birth_is_the_senders",
    ),
    29: Point(
        "The retry topic of an unknown group is refused",
        "messages.what_may_not_be_sent_is_refused_with_rocketmqs_codes",
    ),
    30: Point("A message of a batch without an id gets none", "points.a_message_of_a_batch_without_an_id_gets_none"),
    31: Point(
        "On a full disk sends are refused so that producers try another member",
        "points.a_full_disk_sends_producers_to_another_member",
    ),
    32: Point("What a consumer adds is not stored again", "messages.what_a_consumer_adds_is_not_stored_again"),
    # consumers
    33: Point(
        "A new group begins where its client says",
        "java.push messages.offsets_are_stored_as_given_and_never_beyond_the_end "
        "python_client.messages_are_sent_in_every_way_and_received_by_every_consumer",
    ),
    34: Point("A group goes on at its stored offset", "java.push model.random_histories_break_no_promise"),
    35: Point(
        "Each queue has one owner soon",
        "java.rebalance messages.consumers_are_told_of_each_other sessions.few_consumers_are_told_of_a_change_at_once",
    ),
    36: Point("Tags filter, also those with equal hash codes", "java.tags"),
    37: Point(
        "SQL filters, and broken expressions are refused at the start",
        "java.sql messages.the_state_of_a_queue_decides_how_a_pull_ends",
    ),
    38: Point(
        "A pull waits for a message, as long as it says",
        "messages.a_pull_waits_for_a_message_that_matches java.pull",
    ),
    39: Point("Messages that do not match do not end a wait", "messages.a_pull_waits_for_a_message_that_matches"),
    40: Point(
        "A pull outside of a queue is told where the queue is",
        "messages.the_state_of_a_queue_decides_how_a_pull_ends "
        "points.a_pull_of_what_has_expired_is_told_where_the_queue_begins",
    ),
    41: Point(
        "Broadcasting consumers get all, and store nothing",
        "java.broadcast messages.a_retry_topic_is_made_for_those_who_share_their_messages",
    ),
    42: Point("Lite pull consumers seek and commit", "java.lite-pull"),
    43: Point("Pull consumers pull, wait and commit", "java.pull"),
    44: Point(
        "Large pulls are whole, and a client that reads nothing stops nobody",
        "messages.many_large_pulls_at_once_are_all_answered_and_a_client_that_reads_nothing_stops_nobody",
    ),
    45: Point("A damaged record stops its queue alone", "points.a_damaged_record_stops_its_queue_alone"),
    # retries, order, dead letters
    46: Point(
        "What is sent back comes again later",
        "java.retry messages.what_is_sent_back_comes_again_later_and_at_last_to_the_dead_letters",
    ),
    47: Point(
        "After too many attempts comes the dead letter",
        "java.dead-letter messages.what_is_sent_back_comes_again_later_and_at_last_to_the_dead_letters",
    ),
    48: Point(
        "A delay level of -1 is a dead letter at once",
        "messages.what_is_sent_back_comes_again_later_and_at_last_to_the_dead_letters",
    ),
    49: Point(
        "Ordered consumers see each queue in order",
        "java.order messages.a_consumers_own_send_to_its_retry_topic_ends_in_the_dead_letters_too",
    ),
    50: Point(
        "A lock ends when it is freed, or after a minute",
        "messages.a_queue_is_locked_by_one_client_until_it_is_freed_or_a_minute_is_over",
    ),
    51: Point(
        "What cannot be sent back any more is sent anew",
        "messages.what_is_sent_back_comes_again_later_and_at_last_to_the_dead_letters "
        "messages.a_consumers_own_send_to_its_retry_topic_ends_in_the_dead_letters_too",
    ),
    # transactions, delays, replies
    52: Point(
        "Transactions are committed, rolled back, and asked about",
        "java.transaction messages.a_transaction_is_ended_by_its_offsets_and_asked_about",
    ),
    53: Point(
        "The end of another transaction is refused",
        "messages.a_transaction_is_ended_by_its_offsets_and_asked_about",
    ),
    54: Point(
        "Another producer of the group is asked for one that is gone",
        "points.another_producer_of_the_group_is_asked",
    ),
    55: Point("Delay levels and times are waited for", "java.delay messages.a_delay_level_and_a_time_are_waited_for"),
    56: Point("A message that waits is recalled", "messages.a_message_that_waits_for_its_time_is_recalled"),
    57: Point("A request gets its reply", "java.request relays.a_reply_is_pushed_to_the_producer_that_waits_for_it"),
    # POP
    58: Point(
        "POP delivers all, and is acknowledged",
        "pops.a_pop_hands_out_messages_of_all_queues_until_they_are_acknowledged java.pop",
    ),
    59: Point(
        "POP delivers again what is to be consumed later", "pops.a_changed_invisible_time_has_a_new_extra_info java.pop"
    ),
    60: Point(
        "POP delivers again what was not acknowledged",
        "pops.what_was_not_acknowledged_comes_again_and_counts_its_deliveries",
    ),
    61: Point("A group changes between pulls and POP, and loses nothing", "pops.a_group_goes_on_by_the_other_protocol"),
    # tools
    62: Point(
        "Progress and consumers are shown",
        "mqadmin.consumerProgress java.operators administration.progress_of_queues_groups_and_topics "
        "administration.who_is_connected",
    ),
    63: Point("The state of each queue is shown", "mqadmin.topicStatus"),
    64: Point(
        "Messages are found by key, offset and queue",
        "mqadmin.queryMsgByKey mqadmin.queryMsgByOffset mqadmin.queryCq mqadmin.printMsg "
        "mqadmin.printMsgByQueue mqadmin.consumeMessage java.query",
    ),
    65: Point(
        "Groups are reset, online and offline",
        "java.operators mqadmin.resetOffsetByTime mqadmin.skipAccumulatedMessage mqadmin.cloneGroupOffset "
        "administration.a_reset_is_told_to_the_client_that_owns_the_queue "
        "points.a_reset_is_not_told_once_its_topic_is_another_one",
    ),
    66: Point(
        "Settings of topics and groups are shown as they were set",
        "administration.topics_are_made_changed_shown_and_deleted "
        "administration.groups_are_made_changed_shown_and_deleted mqadmin.updateTopic "
        "mqadmin.updateTopicPerm mqadmin.updateSubGroup mqadmin.getConsumerConfig",
    ),
    67: Point(
        "Statistics are shown",
        "mqadmin.brokerStatus mqadmin.statsAll mqadmin.brokerConsumeStats "
        "administration.statistics_of_the_broker administration.statistics_of_a_topic_and_a_group",
    ),
    68: Point("Tools send and measure", "mqadmin.sendMessage mqadmin.checkMsgSendRT mqadmin.sendMsgStatus"),
    69: Point(
        "Dashboard and exporter work",
        "built_tools.every_metric_of_the_exporter_has_a_value built_tools.the_pages_of_the_dashboard "
        "relays.an_operator_asks_a_consumer",
        BROWSER,
    ),
    # security
    70: Point(
        "A wrong secret, an unknown user and no signature are refused everywhere",
        "messages.users_and_rules_hold_for_every_request",
    ),
    71: Point(
        "Rights hold for groups and topics",
        "messages.users_and_rules_hold_for_every_request administration.operators_need_rights",
    ),
    72: Point(
        "Old clients do not sign all fields of a query",
        "points.an_old_client_does_not_sign_that_it_asks_for_a_unique_key",
    ),
    73: Point(
        "Random frames harm nobody",
        "protocol.random_and_mutated_frames_harm_nobody frames.damaged_frames_are_read_or_named",
    ),
    # both protocols
    74: Point("Messages pass between the protocols", "messages.messages_pass_between_the_protocols"),
    75: Point(
        "Messages of all types by gRPC come to pull consumers",
        "points.messages_of_all_types_by_grpc_are_pulled",
    ),
    76: Point(
        "A group moves to the other protocol and back",
        "model.random_histories_break_no_promise "
        "fleet.old_clients_move_with_their_store_and_are_replaced_later "
        "points.what_waits_for_a_group_moves_with_it",
    ),
    77: Point(
        "Lists of consumers hold remoting clients alone, and the broker's list holds both kinds",
        "messages.consumers_are_told_of_each_other administration.the_brokers_list_of_clients_has_both_kinds",
    ),
}


def test_every_point_is_checked() -> None:
    assert list(POINTS) == list(range(1, 78))
    commands = {command.split()[0] for command, _ in COMMANDS}
    for number, point in POINTS.items():
        assert point.tests or point.reason, f"nothing checks point {number}"
        for each in point.tests.split():
            module, name = each.split(".")
            if module == "java":
                assert name in SCENARIOS + SINCE_5, each
            elif module == "mqadmin":
                assert name in commands, each
            else:
                package = "tests.conformance" if module == "foreign_messages" else "tests.remoting"
                assert callable(getattr(importlib.import_module(f"{package}.test_{module}"), f"test_{name}")), each


async def found_in(client: RemotingClient, topic: str, count: int = 1, **terms: Any) -> list[StoredMessage]:
    """Return the messages of queue 0, as soon as there are so many."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += records_in((await client.pull(topic, len(found), flags=6, wait_ms=20_000, **terms)).body)
    return found


def test_plain_text_is_refused_where_tls_is_required(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        client.begin(106)
        async with asyncio.timeout(10):
            await client.ended.wait()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = await RemotingClient.connect(address_of(broker), ssl=context)
        assert (await secure.call(106)).code == ResponseCode.SUCCESS
        await secure.close()

    serve(test, network={"tls": "required"})


def test_what_is_deleted_is_gone_from_routes(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.heartbeat("G", "T")
        assert (await client.call(105, {"topic": "T"})).code == ResponseCode.SUCCESS
        for name in ("T", "%RETRY%G"):
            assert (await client.call(215, {"topic": name})).code == ResponseCode.SUCCESS
            assert (await client.call(216, {"topic": name})).code == ResponseCode.SUCCESS
            assert broker.store.topics.stored(name) is None
        assert (await client.call(105, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
        deleted = {"namespace": "ORDER_TOPIC_CONFIG", "key": "%RETRY%G"}
        assert (await client.call(102, deleted)).code == ResponseCode.SUCCESS

    serve(test)


def test_properties_come_back_as_they_were_sent(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        sent = {"地区": "北京", "control": "\x03\t", "sign": "a=b;c", "long": "x" * 30_000}
        assert (await client.send("T", b"x", 0, **sent)).code == ResponseCode.SUCCESS
        [record] = await found_in(client, "T")
        assert {name: record.properties[name] for name in sent} == sent

    serve(test)


def test_the_host_of_birth_is_the_senders(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.send("T")
        [record] = await found_in(client, "T")
        assert record.born_host.port == client.writer.get_extra_info("sockname")[1]

    serve(test)


def test_a_message_of_a_batch_without_an_id_gets_none(serve: Serve) -> None:
    """Consumers show the id of its place instead: all clients for Go send batches so."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        batch = [BatchedMessage(0, b"1", b""), BatchedMessage(0, b"2", b"UNIQ_KEY\x01U2")]
        await client.call(320, send_fields("T"), join_batch(batch))
        assert [each.properties.get("UNIQ_KEY") for each in await found_in(client, "T", 2)] == [None, "U2"]

    serve(test)


def test_a_full_disk_sends_producers_to_another_member(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        broker.broker._commit.refuse_sends("the disk is full")
        refused = await client.send("T")
        # clients try another member after these codes, and after no other
        assert refused.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
        assert "the disk is full" in (refused.remark or "")

    serve(test)


def test_a_pull_of_what_has_expired_is_told_where_the_queue_begins(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        await client.send("T", b"expires")
        async with Client(broker.endpoint) as producer:
            await with_an_old_segment(broker, producer)
        await client.send("T", b"kept")
        assert len((await broker.broker._maintenance.expire_now(dry_run=False, rewrite_queues=False)).segments) == 1
        moved = await client.pull("T", 0)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")

    serve(test, expiry={"retention_hours": 1})


def test_a_damaged_record_stops_its_queue_alone(serve: Serve, tmp_path: Path) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        for queue, body in ((0, b"first"), (0, b"to be damaged"), (0, b"third"), (1, b"elsewhere")):
            await client.send("T", body, queue)
        await found_in(client, "T", 3)
        [log] = [each for each in (tmp_path / "store" / "commitlog").iterdir() if b"to be damaged" in each.read_bytes()]
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"to be damaged"))
            file.write(b"to be Damaged")
        for _ in range(2):
            assert [bytes(each.body) for each in records_in((await client.pull("T", 0)).body)] == [b"first"]
            assert (await client.pull("T", 1)).code == ResponseCode.SYSTEM_ERROR
        assert [bytes(each.body) for each in records_in((await client.pull("T", 2)).body)] == [b"third"]
        assert [bytes(each.body) for each in records_in((await client.pull("T", 0, 1)).body)] == [b"elsewhere"]

    serve(test)


def test_another_producer_of_the_group_is_asked(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", TopicType.TRANSACTION)
        first = await RemotingClient.connect(address_of(broker))
        await first.call(34, body=heartbeat_body("c1", "", producers=("PG",)))
        await client.call(34, body=heartbeat_body("c2", "", producers=("PG",)))
        sent = await first.send("T", b"asked", TRAN_MSG="true", PGROUP="PG", UNIQ_KEY="U1")
        await first.close()
        await until(lambda: len(broker.broker._remoting.sessions.producers("PG")) == 1, "it is gone")
        broker.clock.push(60)
        async with asyncio.timeout(20):
            check = await client.asked.get()
        assert check.code == RequestCode.CHECK_TRANSACTION_STATE
        _, at = parse_offset_message_id(sent.fields["msgId"])
        ended = {"producerGroup": "PG", "tranStateTableOffset": sent.fields["queueOffset"], "commitLogOffset": at}
        answer = await client.call(37, {**ended, "msgId": "U1", "commitOrRollback": 8, "fromTransactionCheck": "true"})
        assert answer.code == ResponseCode.SUCCESS
        assert [bytes(each.body) for each in await found_in(client, "T")] == [b"asked"]

    serve(test)


def test_a_reset_is_not_told_once_its_topic_is_another_one(serve: Serve) -> None:
    """The consumer would pass over messages of the new topic, and what it commits there would be forgotten."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        for _ in range(2):
            broker.topic("T", queues=1)
            await client.heartbeat("G", "T")
            for _ in range(3):
                await client.send("T")
            await found_in(client, "T", 3, group="G")
            place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            assert (await client.call(15, {**place, "commitOffset": 1})).code == ResponseCode.SUCCESS
            assert (await client.call(14, place)).fields["offset"] == "1"
            reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "offset": 2}
            assert (await client.call(222, reset)).code == ResponseCode.SUCCESS
            assert (await client.call(215, {"topic": "T"})).code == ResponseCode.SUCCESS

    serve(test)


def test_an_old_client_does_not_sign_that_it_asks_for_a_unique_key(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        add_user(broker, "alice", "topic:T pub sub get", "group:G sub")
        client.user = ("alice", SECRET)
        await client.send("T", b"wanted", UNIQ_KEY="U1")
        query = {"topic": "T", "key": "U1", "maxNum": 5, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
        for version, code in ((399, ResponseCode.SUCCESS), (401, ResponseCode.NO_PERMISSION)):
            command = client.command(12, query, version=version)
            asked = command._replace(fields={**command.fields, "_UNIQUE_KEY_QUERY": "true"})  # after its signature
            waiting = client._waiting[asked.opaque] = asyncio.get_running_loop().create_future()
            client.writer.write(write_command(asked))
            assert (await waiting).code == code

    serve(test, security=SECURED, index={"hash_files": True})


def test_messages_of_all_types_by_grpc_are_pulled(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        kinds: dict[str, tuple[TopicType, dict[str, Any]]] = {
            "fifo": (TopicType.FIFO, {"message_type": definition.FIFO, "message_group": "one"}),
            "delay": (TopicType.DELAY, {}),
            "half": (TopicType.TRANSACTION, {}),
            "priority": (TopicType.PRIORITY, {"message_type": definition.PRIORITY, "priority": 0}),
        }
        async with Client(broker.endpoint) as producer:
            for topic, (kind, terms) in kinds.items():
                broker.topic(topic, kind, queues=1)
                sent = message(topic, topic.encode(), **terms)
                properties = sent.system_properties
                if topic == "delay":
                    properties.message_type = definition.DELAY
                    properties.delivery_timestamp.FromMilliseconds(broker.clock.wall_ms() + 5_000)
                elif topic == "half":
                    properties.message_type = definition.TRANSACTION
                answer = await producer.send(sent)
                assert answer.status.code == definition.OK, answer
                if topic in ("delay", "half"):
                    assert (await client.pull(topic, 0)).code == ResponseCode.PULL_NOT_FOUND
                if topic == "half":
                    await commit(producer, topic, answer)
            broker.pass_time(6)
            for topic in kinds:
                assert [bytes(each.body) for each in await found_in(client, topic)] == [topic.encode()]

    serve(test)


async def commit(producer: Client, topic: str, sent: service.SendMessageResponse) -> None:
    [entry] = sent.entries
    request = service.EndTransactionRequest(
        topic=resource(topic),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=definition.COMMIT,
    )
    answer = await producer.call("EndTransaction", request)
    assert answer.status.code == definition.OK, answer


@pytest.mark.parametrize("topic", ["T", "T_1"])
def test_what_waits_for_a_group_moves_with_it(serve: Serve, topic: str) -> None:
    """Each protocol keeps retries under names of its own."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic(topic, queues=1)
        broker.store.groups.create(Group("G"))
        place = {"consumerGroup": "G", "topic": topic, "queueId": 0}
        await client.heartbeat("G", topic, "%RETRY%G")
        for body in (b"again", b"done"):
            await client.send(topic, body, UNIQ_KEY=body.decode())
        record, _ = await found_in(client, topic, 2)
        back = {"group": "G", "offset": record.physical_offset, "delayLevel": 1, "originTopic": topic}
        assert (await client.call(36, back)).code == ResponseCode.SUCCESS
        assert (await client.call(15, {**place, "commitOffset": 2})).code == ResponseCode.SUCCESS
        broker.pass_time(2)
        await until(lambda: broker.store.messages.maximum(QueueId("%RETRY%G", 0)) == 1, "it waits to be pulled")
        await client.call(35, {"clientID": "c1", "consumerGroup": "G"})

        async with Client(broker.endpoint) as consumer:
            await consumer.declare(consumer_settings("G", topic))
            received = await consumer.receive("G", topic, polling_s=20)
            assert [each.body for each in received.messages] == [b"again"]
        await until(lambda: not list(broker.broker._clients.subscriptions()), "the consumer is gone")

        # it was not acknowledged
        await client.heartbeat("G", topic, "%RETRY%G")
        [_, again] = await found_in(client, "%RETRY%G", 2, group="G")
        assert (bytes(again.body), again.properties["RETRY_TOPIC"], again.properties["UNIQ_KEY"]) == (
            b"again", topic, "again",
        )  # fmt: skip
        assert again.reconsume_times == record.reconsume_times + 1

    serve(test)
