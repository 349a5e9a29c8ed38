"""Slaves of RocketMQ: a fake one that speaks the HA protocol, and the requests that one makes by remoting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.ha import Push, ReportMalformed, Reports, SlaveSide
from quarry_mq.server.remoting.slaves.ha_server import HEARTBEAT_S, PUSH_SIZE, SILENT_S, SLAVES_MAX, HaServer
from quarry_mq.store.rocketmq import parse_json
from tests.conformance.broker import RunningBroker, until
from tests.remoting.client import RemotingClient
from tests.remoting.conftest import Serve, address_of

SEGMENT_SIZE: Final = 1024 * 1024
ON: Final[dict[str, Any]] = {
    "network": {"rocketmq_ha": "127.0.0.1:0"},
    "store": {"segment_size": SEGMENT_SIZE},
}


class Slave:
    """A slave that keeps what it receives, from the offset that it asked for on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._side = SlaveSide(is_controlled=False)
        self.pushes: list[Push] = []
        self.log = b""

    def report(self, offset: int) -> None:
        self.writer.write(self._side.report(offset))

    async def receive(self) -> bool:
        """Receive something; return False at the end of the connection."""
        try:
            data = await self._reader.read(1 << 20)
        except ConnectionError:
            return False
        found = self._side.feed(data)
        self.pushes += found
        self.log += b"".join(each.data for each in found)
        return bool(data)

    async def until(self, size: int) -> None:
        """Receive until so many bytes of the log are here, and report them."""
        async with asyncio.timeout(30):
            while len(self.log) < size:
                assert await self.receive(), "the connection has ended"
        self.report(self.pushes[0].offset + len(self.log))

    async def ended(self) -> bool:
        """Receive until the connection ends."""
        async with asyncio.timeout(30):
            while await self.receive():
                pass
        return True


def ha_of(broker: RunningBroker) -> HaServer:
    found = broker.broker._remoting.slaves
    assert found is not None
    return found


@asynccontextmanager
async def slave_of(broker: RunningBroker, begin: int | None = 0, **terms: Any) -> AsyncIterator[Slave]:
    """Attach a slave that asks for the log from `begin` on; None: that asks for nothing."""
    slave = Slave(*await asyncio.open_connection("127.0.0.1", ha_of(broker).port, **terms))
    try:
        if begin is not None:
            slave.report(begin)
        yield slave
    finally:
        slave.writer.close()


def log_of(broker: RunningBroker) -> bytes:
    """Return the durable bytes of all segment files."""
    segments = broker.store.segments
    whole = b"".join(segments.path_of(base).read_bytes() for base in segments.bases)
    return whole[: broker.store.messages.flushed_up_to - segments.minimum]


async def send(client: RemotingClient, count: int, size: int = 100_000) -> None:
    answers = await asyncio.gather(*(client.send("T", bytes([number % 256]) * size) for number in range(count)))
    assert {each.code for each in answers} == {ResponseCode.SUCCESS}


def test_a_slave_without_a_log_gets_all_of_it_and_what_follows(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await send(client, 35)
        assert len(broker.store.segments) == 4
        async with slave_of(broker) as slave:
            await slave.until(len(log_of(broker)))
            await send(client, 5)
            await slave.until(len(log_of(broker)))
            assert slave.log == log_of(broker)
            assert all(len(each.data) <= PUSH_SIZE for each in slave.pushes)
            segments = {
                (each.offset // SEGMENT_SIZE, (each.offset + len(each.data) - 1) // SEGMENT_SIZE)
                for each in slave.pushes
            }
            assert all(first == last for first, last in segments), "RocketMQ puts no push into two segments"
            await until(lambda: ha_of(broker).lags == [0], "the broker knows that the slave has all")

    serve(test, **ON)


@pytest.mark.parametrize("begin", [1, 12_345, SEGMENT_SIZE - 1, SEGMENT_SIZE, SEGMENT_SIZE + 1])
def test_a_slave_goes_on_at_any_byte(begin: int, serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await send(client, 12)
        whole = log_of(broker)
        async with slave_of(broker, begin) as slave:
            await slave.until(len(whole) - begin)
            assert (slave.pushes[0].offset, slave.log) == (begin, whole[begin:])

    serve(test, **ON)


def test_a_report_that_cannot_be_ends_its_connection_alone(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await send(client, 3)
        end = len(log_of(broker))
        async with slave_of(broker) as good:
            await good.until(end)
            for begin, then in ((-1, None), (end + 1, None), (1 << 62, None), (end, end + 8), (end, -8)):
                async with slave_of(broker, begin) as bad:
                    if then is not None:
                        bad.report(then)
                    assert await bad.ended()
                    assert bad.log == b""
            async with slave_of(broker, None) as stranger:
                stranger.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await stranger.ended()
            await send(client, 1)
            await good.until(len(log_of(broker)))
            assert good.log == log_of(broker)
            assert len(ha_of(broker).attached) == 1

    serve(test, **ON)


def test_a_silent_slave_is_gone_after_twenty_seconds(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        async with slave_of(broker) as slave, slave_of(broker) as silent, slave_of(broker, None) as mute:
            await until(lambda: len(ha_of(broker).attached) == 2, "two are attached")
            for beats in range(1, int(SILENT_S / HEARTBEAT_S) + 1):
                broker.clock.push(HEARTBEAT_S)
                while len(slave.pushes) < beats:
                    assert await slave.receive()
                if beats < SILENT_S / HEARTBEAT_S:
                    slave.report(0)
                    heard_s = broker.clock.monotonic_s()
                    await until(
                        lambda since_s=heard_s: any(each._heard_s >= since_s for each in ha_of(broker)._slaves),
                        "the report has arrived",
                    )
            assert {(each.offset, each.data) for each in slave.pushes} == {(0, b"")}
            assert await silent.ended()
            assert await mute.ended()
            assert [each.peer for each in ha_of(broker).attached] == [
                "{}:{}".format(*slave.writer.get_extra_info("sockname"))
            ]

    serve(test, **ON)


def test_a_slave_that_does_not_read_costs_two_pushes(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await send(client, 200, 100_000)
        async with slave_of(broker, limit=1 << 16) as slave:
            await until(
                lambda: any(not each._writable.is_set() for each in ha_of(broker)._slaves), "nothing more is written"
            )
            [waiting] = ha_of(broker)._slaves
            assert waiting._transport.get_write_buffer_size() <= 2 * (PUSH_SIZE + 12)
            await client.send("T", b"others go on")
            await slave.until(len(log_of(broker)))
            assert slave.log == log_of(broker)

    serve(test, **ON)


def test_a_removed_segment_ends_the_connection(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await send(client, 200, 100_000)
        segments = broker.store.segments
        async with slave_of(broker, limit=1 << 16) as slave:
            await until(
                lambda: any(not each._writable.is_set() for each in ha_of(broker)._slaves), "nothing more is written"
            )
            last = segments.base_of(broker.store.messages.flushed_up_to)
            for path in segments.retire_before(last):
                path.unlink()
            assert await slave.ended()
            assert 0 < len(slave.log) < last
        async with slave_of(broker, 1) as late:
            assert await late.ended()
        async with slave_of(broker) as fresh:
            await fresh.until(1)
            assert fresh.pushes[0].offset == last

    serve(test, **ON)


def test_there_are_few_slaves_at_a_time(serve: Serve) -> None:
    async def test(broker: RunningBroker, _client: RemotingClient) -> None:
        async with AsyncExitStack() as stack:
            slaves = [await stack.enter_async_context(slave_of(broker)) for _ in range(SLAVES_MAX)]
            await until(lambda: len(ha_of(broker).attached) == SLAVES_MAX, "all are attached")
            async with slave_of(broker) as more:
                assert await more.ended()
            slaves[0].writer.close()
            await until(lambda: len(ha_of(broker).attached) == SLAVES_MAX - 1, "there is room")
            async with slave_of(broker):
                await until(lambda: len(ha_of(broker).attached) == SLAVES_MAX, "the next is attached")

    serve(test, **ON)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_stop_lets_a_slave_get_the_rest(durability: str, serve: Serve) -> None:
    slave: list[Slave] = []
    rest: list[asyncio.Task[None]] = []
    paths: list[Any] = []

    async def follow() -> None:
        while await slave[0].receive():
            slave[0].report(len(slave[0].log))
        slave[0].writer.close()

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        slave.append(Slave(*await asyncio.open_connection("127.0.0.1", ha_of(broker).port)))
        slave[0].report(0)
        await until(lambda: bool(ha_of(broker).attached), "it is attached")
        await send(client, 40)
        rest.append(asyncio.get_running_loop().create_task(follow()))
        segments = broker.store.segments
        paths.extend(segments.path_of(base) for base in segments.bases)

    serve(
        test,
        network={**ON["network"], "stop_grace_ms": 20_000},
        store={**ON["store"], "durability": durability, "flush_interval_ms": 5_000},
    )
    whole = b"".join(path.read_bytes() for path in paths)
    received = slave[0].log
    assert len(received) > 40 * 100_000
    assert whole.startswith(received)
    assert whole[len(received) :].strip(b"\0") == b""


def test_a_stop_waits_for_a_slave_only_as_long_as_the_grace_lasts(serve: Serve) -> None:
    slaves: list[Slave] = []

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        slaves.append(Slave(*await asyncio.open_connection("127.0.0.1", ha_of(broker).port)))
        slaves[0].report(0)
        await until(lambda: bool(ha_of(broker).attached), "it is attached")
        await client.send("T", b"hello")
        slaves[0].writer.close()
        stuck = Slave(*await asyncio.open_connection("127.0.0.1", ha_of(broker).port))
        stuck.report(0)
        slaves.append(stuck)
        await until(lambda: [each.sent for each in ha_of(broker).attached] == [len(log_of(broker))], "all was sent")
        stopping = asyncio.get_running_loop().create_task(ha_of(broker).stop(1_000))
        await asyncio.sleep(0)
        assert not stopping.done()
        await ha_of(broker).stop(0)
        await stopping
        assert await stuck.ended()
        stuck.writer.close()

    serve(test, **ON)


def test_a_read_that_fails_ends_the_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.send("T", b"hello")
        for error in (OSError("no"), ValueError("never seen")):
            monkeypatch.setattr(broker.store.segments.disk, "read_range", lambda *_, error=error: _raise(error))
            async with slave_of(broker) as slave:
                assert await slave.ended()

    serve(test, **ON)


def _raise(error: Exception) -> bytes:
    raise error


def test_reports_are_read_in_pieces_of_any_size() -> None:
    sent = b"".join(offset.to_bytes(8) for offset in range(5))
    for size in range(1, len(sent) + 1):
        reports, found = Reports(), []
        for at in range(0, len(sent), size):
            found += reports.feed(sent[at : at + size])
        assert found == list(range(5))
    with pytest.raises(ReportMalformed):
        Reports().feed(b"\xff" * 8)


# -- requests


async def answered(client: RemotingClient, code: RequestCode, fields: Mapping[str, object] | None = None) -> Any:
    answer = await client.call(code, fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body) if answer.body else answer.fields


def registration(**changes: object) -> dict[str, object]:
    fields = {"brokerName": "broker-a", "brokerId": 1, "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster"}
    return {**fields, "haServerAddr": "127.0.0.1:2", **changes}


def test_a_slave_that_registers_learns_where_its_master_is_and_stays_out_of_routes(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        before = await answered(client, RequestCode.GET_ROUTE_BY_TOPIC, {"topic": "T"})
        names = await RemotingClient.connect(address_of(broker, "names_listen"))
        answer = await names.call(RequestCode.REGISTER_BROKER, registration())
        own = {"haServerAddr": f"127.0.0.1:{ha_of(broker).port}", "masterAddr": address_of(broker)}
        assert (answer.code, dict(answer.fields), json.loads(answer.body)) == (0, own, {"table": {}})
        assert await answered(client, RequestCode.GET_ROUTE_BY_TOPIC, {"topic": "T"}) == before
        found = await client.call(RequestCode.EXCHANGE_BROKER_HA_INFO)
        assert dict(found.fields) == {
            "masterAddress": own["masterAddr"],
            "masterFlushOffset": str(broker.store.messages.flushed_up_to),
            "masterHaAddress": own["haServerAddr"],
        }
        refused = await names.call(RequestCode.REGISTER_BROKER, registration(brokerId=0))
        assert (refused.code, "brokerRole=SLAVE" in (refused.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        assert (await names.call(RequestCode.UNREGISTER_BROKER, registration())).code == ResponseCode.SUCCESS
        await names.close()

    serve(test, **ON)


def test_without_the_setting_a_slave_is_told_so(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        refused = await client.call(RequestCode.REGISTER_BROKER, registration())
        assert (refused.code, "network.rocketmq_ha" in (refused.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert ha_of(broker).port == 0

    serve(test)


def test_the_state_of_slaves_is_shown(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.send("T", b"hello")
        end = broker.store.messages.flushed_up_to
        async with slave_of(broker) as slave:
            await slave.until(end)
            await until(lambda: ha_of(broker).lags == [0], "the report has come")
            await client.send("T", b"hello")
            await slave.receive()
            later = broker.store.messages.flushed_up_to
            await until(lambda: ha_of(broker).attached[0].sent == later, "all was sent")
            status = await answered(client, RequestCode.GET_BROKER_HA_STATUS)
            [shown] = status["haConnectionInfo"]
            assert (shown["slaveAckOffset"], shown["diff"], shown["inSync"]) == (end, later - end, False)
            assert (status["master"], status["inSyncSlaveNums"], status["masterCommitLogMaxOffset"]) == (True, 0, later)
            assert broker.registry.get_sample_value("quarry_slaves") == 1
            assert broker.registry.get_sample_value("quarry_slave_lag_bytes") == later - end

    serve(test, **ON)


def test_positions_are_those_that_are_done(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        broker.group("G")
        for _ in range(3):
            await client.send("T", b"hello", 1)
        await client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 2}
        )
        found = await answered(client, RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert found["offsetTable"]["T@G"] == {"1": 2}
        assert found["offsetTable"]["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {"0": 0}
        assert await answered(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE) == {"messageRequestModeMap": {}}
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
        modes = await answered(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert modes == {"messageRequestModeMap": {"T": {"G": mode}}}
        assert (await answered(client, RequestCode.GET_TIMER_METRICS))["timingCount"] == {}

    serve(test, **ON)


def test_tables_have_another_version_after_a_change(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        async def versions() -> list[Any]:
            codes = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_GROUP_CONFIG)
            pages = {"topicSeq": 0, "maxTopicNum": 1, "groupSeq": 0, "maxGroupNum": 1}
            of_all = [(await answered(client, code))["dataVersion"] for code in codes]
            assert of_all == [(await answered(client, code, pages))["dataVersion"] for code in codes]
            return of_all

        broker.topic("T")
        broker.topic("U")
        first = await versions()
        assert await versions() == first
        broker.store.topics.delete("U")
        broker.topic("V")
        broker.group("G")
        second = await versions()
        assert all(before != after for before, after in zip(first, second, strict=True))

    serve(test, **ON)


async def timer_check(client: RemotingClient) -> tuple[int, int]:
    """Return the time before which timers were delivered, and how far their queue was read."""
    body = (await client.call(RequestCode.GET_TIMER_CHECK_POINT)).body
    assert len(body) == 56
    return int.from_bytes(body[:8]), int.from_bytes(body[24:32])


async def delay_offsets(client: RemotingClient) -> Any:
    """Return the progress of the delay levels, from the text that RocketMQ keeps in a file."""
    return parse_json((await client.call(RequestCode.GET_ALL_DELAY_OFFSET)).body)["offsetTable"]


def test_the_progress_of_delayed_messages_is_what_slaves_have(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        now_ms = broker.clock.wall_ms()
        await client.send("T", b"soon", TIMER_DELAY_SEC="10")
        await client.send("T", b"later", TIMER_DELAY_SEC="3600")
        await client.send("T", b"level", DELAY="2")
        assert await timer_check(client) == (0, 0), "nobody has the log"
        async with slave_of(broker) as slave:
            await slave.until(len(log_of(broker)))
            await until(lambda: ha_of(broker).lags == [0], "the report has come")
            read_ms, read = await timer_check(client)
            assert (read, read_ms <= broker.clock.wall_ms()) == (2, True)
            end = len(log_of(broker))
            broker.pass_time(15)
            await until(lambda: len(log_of(broker)) > end, "a delayed message was delivered")
            await until(lambda: broker.store.messages.pending.timer_changes == 1, "two were")
            assert (await timer_check(client))[0] <= now_ms + 10_000, "the slave lacks what was delivered"
            assert (await delay_offsets(client)) == {}
            await slave.until(len(log_of(broker)))
            await until(lambda: ha_of(broker).lags == [0], "the report has come")
            assert now_ms + 12_000 < (await timer_check(client))[0] <= broker.clock.wall_ms()
            assert (await delay_offsets(client)) == {"2": 1}

    serve(test, **ON)
