"""`quarry follow` beside a live Apache RocketMQ that has users, and one whose topic is deleted and made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.peers.rocketmq import RocketMQ
from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.store.settings import Durability
from tests.e2e.broker import quarry, until
from tests.e2e.conftest import StartBroker
from tests.following.test_live_rocketmq import SEGMENT_SIZE, Follower, RocketMQ4, WithoutProxy
from tests.remoting.client import ask
from tests.remoting.test_fleet import TOPIC, Fleet, knows_topic
from tests.remoting.test_java_clients import played, remoting_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

USER: Final = "operator"
SECRET: Final = "12345678"
ACL_1: Final = f"accounts:\n- accessKey: {USER}\n  secretKey: {SECRET}\n  admin: true\n"
AUTH: Final = "org.apache.rocketmq.auth"
USERS_AND_RULES: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{SECRET}"}}',
}
KINDS: Final = {
    "4.9.7 ACL 1.0": (RocketMQ4, {"aclEnable": "true"}),
    "5.5.0 ACL 2.0": (WithoutProxy, USERS_AND_RULES),
}


class WithoutFront(WithoutProxy):
    """A broker of RocketMQ 5.5.0 that is awaited at its own port."""

    def start(self) -> None:
        self._front = self.broker_port
        super().start()


def started(made: RocketMQ) -> Iterator[RocketMQ]:
    try:
        made.start()
        until(lambda: knows_topic(made.names), "the broker has registered", timeout_s=90)
        yield made
    finally:
        made.close()


@pytest.fixture(params=KINDS)
def with_users(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    kind, properties = KINDS[request.param]
    made = (WithoutFront if kind is WithoutProxy else kind)(
        tmp_path / "rocketmq",
        Durability.ASYNC,
        topic=TOPIC,
        queues=4,
        groups=["fleet"],
        properties={"mappedFileSizeCommitLog": SEGMENT_SIZE, **properties},
    )
    (tmp_path / "rocketmq" / "conf" / "plain_acl.yml").write_text(ACL_1)
    yield from started(made)


@pytest.fixture(params=["default", "defaultRocksDB"])
def without_users(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    made = WithoutFront(
        tmp_path / "rocketmq",
        Durability.ASYNC,
        topic=TOPIC,
        queues=4,
        groups=["fleet"],
        properties={"mappedFileSizeCommitLog": SEGMENT_SIZE, "storeType": request.param},
    )
    yield from started(made)


def test_a_user_follows_and_cuts_over(
    with_users: RocketMQ, start_broker: StartBroker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    classes = remoting_classes("4.9.8", tmp_path_factory)
    broker, store, secret = f"127.0.0.1:{with_users.broker_port}", tmp_path / "store", tmp_path / "secret"
    sends = ["-Dfirst=0", "-Dlast=40"]
    played(with_users.names, classes, TOPIC, "fleet-send", USER, SECRET, options=sends)
    secret.write_text("wrong\n")
    login = ("--user", USER, "--secret-file", str(secret))
    refused = quarry("follow", broker, "--store", str(store), "--cut-over", *login)
    assert refused.returncode == 2, refused.stdout
    assert not store.exists()
    secret.write_text(SECRET + "\n")
    assert ", 0 bytes behind" in Follower(broker, store, "--cut-over", *login).wait()
    names, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"store.segment_size": SEGMENT_SIZE, "remoting.listen": own, "remoting.names_listen": names}
    start_broker(store=store, settings=settings, after_cut_over=True).ready_or_ended()
    assert sorted(Fleet(names, classes).receive(40)) == list(range(40))


def test_a_topic_that_was_made_again_has_its_new_messages_alone(
    without_users: RocketMQ, start_broker: StartBroker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The follower does not see that the topic was away, since it looks at the topics every 30 s."""
    broker, store = f"127.0.0.1:{without_users.broker_port}", tmp_path / "store"
    fleet = Fleet(without_users.names, remoting_classes("4.9.8", tmp_path_factory))
    fleet.send(range(40))
    assert len(fleet.receive(40)) == 40
    Follower(broker, store, "--until-caught-up").wait()
    ask(broker, (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, b""))
    queues = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    settings = {**queues, "defaultTopic": "TBW102", "topic": TOPIC, "topicFilterType": "SINGLE_TAG"}
    ask(broker, (RequestCode.UPDATE_AND_CREATE_TOPIC, settings, b""))
    fleet.send(range(100, 108))
    Follower(broker, store, "--cut-over").wait()
    names, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    addresses = {"store.segment_size": SEGMENT_SIZE, "remoting.listen": own, "remoting.names_listen": names}
    served = start_broker(store=store, settings=addresses, after_cut_over=True)
    assert served.ready_or_ended() is None, served.words()
    assert sorted(Fleet(names, fleet._class_path).receive(8)) == list(range(100, 108))
    served.stop()
    assert quarry("verify", str(store)).returncode == 0
