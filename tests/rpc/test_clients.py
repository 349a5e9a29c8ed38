"""The registry of clients: signs of life, streams, and who is told when one is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.settings import ClientKind, ClientSettings
from tests.rpc.fake_call import FakeCall

SETTINGS = ClientSettings(
    kind=ClientKind.PUSH_CONSUMER,
    topics=("orders",),
    group="workers",
    request_timeout_ms=3_000,
    language="JAVA",
    version="5.2.1",
    hostname="host",
)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients = ClientRegistry(self.clock, BrokerSettings())
        self.lost: list[str] = []
        self.clients.on_lost(self.lost.append)

    def join(self, client_id: str) -> FakeCall:
        stream = FakeCall()
        self.clients.register(client_id, SETTINGS, stream)
        return stream

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.clients.sweep()


@pytest.fixture
def world() -> World:
    return World()


def test_consumers_are_found_by_their_group_as_long_as_they_are_of_it(world: World) -> None:
    producer = replace(SETTINGS, kind=ClientKind.PRODUCER, group=None)
    world.join("a")
    world.join("b")
    world.clients.register("p", producer, FakeCall())
    assert [each.client_id for each in world.clients.consumers_of("workers")] == ["a", "b"]
    assert (world.clients.kinds[ClientKind.PUSH_CONSUMER], world.clients.kinds[ClientKind.PRODUCER]) == (2, 1)
    world.clock.advance(1)
    world.clients.register("a", replace(SETTINGS, group="others"), FakeCall(peer="192.0.2.8:7"))
    assert [each.client_id for each in world.clients.consumers_of("workers")] == ["b"]
    (moved,) = world.clients.consumers_of("others")
    assert (moved.peer, moved.settings_ms) == ("192.0.2.8:7", world.clock.wall_ms())
    world.clients.register("b", producer, FakeCall())
    world.clients.terminate("a")
    assert not world.clients.consumers_of("workers")
    assert not world.clients.consumers_of("others")
    assert (world.clients.kinds[ClientKind.PUSH_CONSUMER], world.clients.kinds[ClientKind.PRODUCER]) == (0, 2)
    assert world.clients.producers_of("orders") == ("p", "b")


def test_a_silent_client_is_forgotten_though_its_stream_is_open(world: World) -> None:
    world.join("a")
    world.wait(119)
    assert world.clients.find("a") == SETTINGS
    world.wait(1)
    assert world.lost == ["a"]
    assert world.clients.find("a") is None
    assert not world.clients.is_alive("a")
    assert len(world.clients) == 0
    world.wait(1000)
    assert world.lost == ["a"]


def test_a_client_without_stream_is_taken_for_gone_and_may_come_back(world: World) -> None:
    """What it held goes to others after 20 s, its settings stay for the whole timeout."""
    world.clients.detach("a", world.join("a"))
    world.wait(19)
    assert world.clients.is_alive("a")
    world.wait(1)
    assert world.lost == ["a"]
    assert not world.clients.is_alive("a")
    assert world.clients.find("a") == SETTINGS
    world.wait(10)
    assert world.lost == ["a"]
    world.clients.touch("a")
    assert world.clients.is_alive("a")
    world.wait(20)
    assert world.lost == ["a", "a"]
    world.wait(100)
    assert world.lost == ["a", "a"]
    assert world.clients.find("a") is None


def test_a_client_that_calls_needs_no_stream(world: World) -> None:
    """Reference tests close the stream right after the settings and go on receiving."""
    world.clients.detach("a", world.join("a"))
    for _ in range(30):
        world.wait(10)
        world.clients.touch("a")
    assert world.lost == []


def test_one_of_two_streams_is_enough(world: World) -> None:
    first, second = world.join("a"), world.join("a")
    world.clients.detach("a", second)
    assert world.clients.push_stream("a") is first
    world.wait(60)
    assert world.lost == []


def test_settings_sent_again_move_the_stream_to_the_front(world: World) -> None:
    first, second = world.join("a"), world.join("a")
    assert world.clients.push_stream("a") is second
    world.clients.register("a", SETTINGS, first)
    assert world.clients.push_stream("a") is first
    (client,) = world.clients
    assert client.streams == [second, first]


def test_goodbye_is_reported_once(world: World) -> None:
    world.join("a")
    world.join("b")
    world.clients.terminate("a")
    world.clients.terminate("a")
    world.clients.terminate("unknown")
    assert world.lost == ["a"]
    assert [client.client_id for client in world.clients] == ["b"]


def test_unknown_clients_are_no_error(world: World) -> None:
    world.clients.touch("unknown")
    world.clients.detach("unknown", FakeCall())
    assert world.clients.find("unknown") is None
    assert world.clients.push_stream("unknown") is None
    assert not world.clients.is_alive("unknown")
    assert len(world.clients) == 0


def test_a_foreign_stream_detaches_nothing(world: World) -> None:
    stream = world.join("a")
    world.clients.detach("a", FakeCall())
    assert world.clients.push_stream("a") is stream


class LimitedWorld(World):
    def __init__(self, **limits: int) -> None:
        super().__init__()
        self.clients.configure(BrokerSettings.model_validate({"limits": limits}))


def test_who_has_had_no_stream_for_longest_gives_way() -> None:
    world = LimitedWorld(clients=3)
    streams = {name: world.join(name) for name in ("a", "b", "c")}
    for name in ("b", "a"):
        world.clients.detach(name, streams[name])
    world.join("d")
    assert world.lost == ["b"]
    assert [each.client_id for each in world.clients] == ["a", "c", "d"]
    world.join("a")  # it is back, and gives way no more
    with pytest.raises(OverLimit) as refused:
        world.join("e")
    assert refused.value.limit == "clients"
    assert len(world.clients) == 3


def test_a_client_has_so_many_streams_and_no_more() -> None:
    world = LimitedWorld(streams_per_client=2)
    first, _ = world.join("a"), world.join("a")
    with pytest.raises(OverLimit) as refused:
        world.join("a")
    assert refused.value.limit == "streams_per_client"
    world.clients.register("a", SETTINGS, first)  # the same stream once more
    world.clients.detach("a", first)
    world.join("a")


def test_clients_declare_so_many_topics_together_and_no_more() -> None:
    world = LimitedWorld(client_topics=10)
    six, five, four = (replace(SETTINGS, topics=tuple(f"t{n}" for n in range(count))) for count in (6, 5, 4))
    stream = FakeCall()
    world.clients.register("a", six, stream)
    with pytest.raises(OverLimit) as refused:
        world.clients.register("b", five, FakeCall())
    assert refused.value.limit == "client_topics"
    assert world.clients.find("b") is None
    world.clients.register("b", four, FakeCall())
    world.clients.register("a", five, stream)  # instead of six
    world.clients.terminate("b")
    world.clients.register("c", five, FakeCall())
    world.clients.register("d", replace(SETTINGS, topics=()), FakeCall())
