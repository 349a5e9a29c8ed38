"""Official clients as users: each signs as its library does, in the zone of its machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from store.disk import PosixDisk
from store.security.model import Action, Resource, Rule, User
from store.security.offline import users_of
from store.security.sealing import Sealer
from tests.e2e.broker import Broker
from tests.e2e.clients import ClientError, Outgoing, content_of
from tests.e2e.conftest import StartBroker, StartClients

TOPIC = "acme-orders"
SECRET = "correct-horse-battery"
COUNT = 8
REFUSED = (ClientError, AssertionError)
"""Some programs end when their library does not start."""


def started(start_broker: StartBroker, store: Path) -> Broker:
    """A broker whose only user may use the topic, as `shop`."""
    key = Fernet.generate_key()
    with users_of(PosixDisk(), store, Sealer([key])) as users:
        users.create(User(name="shop"))
        users.add_secret("shop", SECRET, 0)
        for resource, actions in ((f"topic:{TOPIC}", (Action.PUB, Action.SUB)), ("group:billing", (Action.SUB,))):
            users._policies.put_rule("shop", Rule(resource=Resource.parse(resource), actions=frozenset(actions)))
    settings = {
        "security.authentication": True,
        "security.authorization": True,
        "security.client_zones": '["Asia/Kathmandu"]',
        "security.key": key.decode(),
    }
    return start_broker(store=store, settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "node", "java", "go"])
def test_a_client_in_another_zone_sends_and_receives_what_its_user_may(
    language: str,
    start_broker: StartBroker,
    start_clients: StartClients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = started(start_broker, tmp_path / "secured")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")  # five hours and three quarters ahead
    monkeypatch.setenv("CLIENT_USER", "shop")
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    clients = start_clients(language, broker.endpoint)
    sent = [Outgoing(topic=TOPIC, body=b"%d" % number) for number in range(COUNT)]
    clients.producer(TOPIC).send(sent)
    deliveries = clients.simple_consumer(TOPIC, group="billing", await_s=1).receive_until(COUNT)
    assert sorted(each.content() for each in deliveries) == sorted(map(content_of, sent))
    with pytest.raises(REFUSED):
        clients.producer("payments").send([Outgoing(topic="payments", body=b"x")])
    if language != "node":  # it signs UTC
        monkeypatch.setenv("TZ", "America/St_Johns")  # a zone that the broker was not told
        with pytest.raises(REFUSED):
            start_clients(language, broker.endpoint).producer(TOPIC).send(sent)
    broker.assert_no_stack_trace()
