"""The services that need no store behind them, put together on memory tables."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.limits import DEFAULT_LIMITS
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.addresses import Address
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.cluster.membership import Members
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.rpc.messaging import messaging_methods
from quarry_mq.server.rpc.routes import RouteService
from quarry_mq.server.rpc.sessions import SessionService, TelemetryService
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import GroupsSection, TopicsSection
from quarry_mq.server.wire.settings import ClientSettings
from quarry_mq.store.metadata import Group, GroupTable, Topic, TopicTable, TopicType
from tests.rpc.fake_call import CLIENT, FakeCall, MessageT

SERVICE = "/apache.rocketmq.v2.MessagingService/"
MESSAGE_METHODS = (
    "SendMessage",
    "ReceiveMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "QueryOffset",
    "EndTransaction",
    "ForwardMessageToDeadLetterQueue",
    "RecallMessage",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "SyncLiteSubscription",
)
STREAMS = ("ReceiveMessage", "PullMessage")
STRICT = BrokerSettings(topics=TopicsSection(auto_create=False), groups=GroupsSection(auto_create=False))


class Broker:
    """Everything but the calls that carry messages. By default nothing is made on first use."""

    def __init__(
        self,
        *,
        settings: BrokerSettings = STRICT,
        advertise: Address | None = None,
        members: Members | None = None,
    ) -> None:
        engine = MemoryEngine(["topics", "groups"], write_ahead_log=True)
        self.clock = ManualClock()
        self.topics = TopicTable(engine)
        self.groups = GroupTable(engine)
        self.clients = ClientRegistry(self.clock, settings)
        self.lost: list[str] = []
        self.clients.on_lost(self.lost.append)
        self.subscribed: list[tuple[str, tuple[str, ...]]] = []
        self.command_answers: list[tuple[str, service.TelemetryCommand]] = []
        self.directory = Directory(self.topics, self.groups, settings)
        edge = Edge(self.clients, ErrorReporter(self.clock, damage_met=lambda: None, passed_over=lambda: None))
        identity = BrokerIdentity(name="broker-a", listen=Address("127.0.0.1", 8081), advertise=advertise)
        self.telemetry = TelemetryService(
            edge,
            self.clients,
            self.directory,
            DEFAULT_LIMITS,
            subscribed=self._note_subscription,
            command_answered=lambda client_id, command: self.command_answers.append((client_id, command)),
        )
        self.methods = messaging_methods(
            RouteService(edge, self.clients, self.directory, identity, members).methods(),
            SessionService(edge, self.clients).methods(),
            self.telemetry.methods(),
            {
                name: Method(_not_here, streaming_out=name in ("ReceiveMessage", "PullMessage"))
                for name in MESSAGE_METHODS
            },
        )

    def _note_subscription(self, group: str, settings: ClientSettings) -> None:
        self.subscribed.append((group, settings.topics))

    def add_topic(self, name: str, kind: TopicType = TopicType.NORMAL, read: int = 4, write: int = 4) -> Topic:
        topic = Topic(name, kind, read, write)
        self.topics.create(topic)
        return topic

    def add_group(self, name: str, *, fifo: bool = False) -> Group:
        group = Group(name, fifo)
        self.groups.create(group)
        return group

    def start(self, method: str, request: Message | bytes, *, client_id: str | None = CLIENT) -> FakeCall:
        """Make a call and hand over its one request."""
        call = FakeCall(SERVICE + method, client_id=client_id)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        self.methods[SERVICE + method].handler(call, body)
        return call

    def ask(self, method: str, request: Message, answer: type[MessageT], *, client_id: str | None = CLIENT) -> MessageT:
        """A unary call and its answer."""
        return self.start(method, request, client_id=client_id).answer(answer)

    def open_telemetry(self, *, client_id: str | None = CLIENT, room: int = 1_000_000) -> TelemetryStream:
        return TelemetryStream(self.methods, client_id, room)

    def connect(self, settings: definition.Settings, *, client_id: str = CLIENT) -> TelemetryStream:
        """A client with these settings, accepted."""
        stream = self.open_telemetry(client_id=client_id)
        stream.say(settings)
        assert stream.call.status is None, stream.call.message
        return stream


class TelemetryStream:
    """The client's side of a telemetry stream."""

    def __init__(self, methods: Mapping[str, Method], client_id: str | None, room: int) -> None:
        self._method = methods[SERVICE + "Telemetry"]
        self.call = FakeCall(SERVICE + "Telemetry", client_id=client_id, room=room)
        assert self._method.on_open is not None
        self._method.on_open(self.call)

    def say(self, command: definition.Settings | service.TelemetryCommand | bytes) -> None:
        if isinstance(command, definition.Settings):
            command = service.TelemetryCommand(settings=command)
        self._method.handler(self.call, command if isinstance(command, bytes) else command.SerializeToString())

    def half_close(self) -> None:
        assert self._method.on_half_close is not None
        self._method.on_half_close(self.call)

    @property
    def answers(self) -> list[service.TelemetryCommand]:
        return self.call.answers(service.TelemetryCommand)


def resource(name: str, namespace: str = "") -> definition.Resource:
    return definition.Resource(name=name, resource_namespace=namespace)


def producer(*topics: str) -> definition.Settings:
    return definition.Settings(
        client_type=definition.PRODUCER,
        publishing=definition.Publishing(topics=[resource(topic) for topic in topics]),
    )


def consumer(group: str, *topics: str, kind: definition.ClientType = definition.PUSH_CONSUMER) -> definition.Settings:
    return definition.Settings(
        client_type=kind,
        subscription=definition.Subscription(
            group=resource(group),
            subscriptions=[definition.SubscriptionEntry(topic=resource(topic)) for topic in topics],
        ),
    )


def _not_here(call: Call, body: bytes) -> None:
    call.finish(GrpcStatus.UNIMPLEMENTED)
