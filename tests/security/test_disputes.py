"""A certificate that two users claim, as two members can bring about, is told of."""

from __future__ import annotations

from structlog.testing import capture_logs

from quarry_mq.server.security.build import CertificateDisputes
from quarry_mq.store.security.model import Secret, User
from tests.replication.members import SECRET, gathered, member


def user(name: str, *certificates: str) -> User:
    return User(name=name, secrets=(Secret(1, SECRET, 1),), certificates=certificates)


def test_a_disputed_certificate_is_told_once_with_its_users_and_when_it_is_over() -> None:
    one, two = member("one"), member("two")
    one.tables.users.create(user("anna", "CN=shop"))
    two.tables.users.create(user("ben", "CN=shop", "CN=till"))
    disputes = CertificateDisputes(one.tables.users)
    with capture_logs() as lines:
        disputes.look()
    assert not lines
    gathered(one, two)
    with capture_logs() as lines:
        disputes.look()
        disputes.look()
    assert [(line["log_level"], line["subject"], line["users"]) for line in lines] == [
        ("error", "CN=shop", ["anna", "ben"])
    ]
    two.tables.users.update(user("ben", "CN=till"))
    gathered(one, two)
    with capture_logs() as lines:
        disputes.look()
        disputes.look()
    assert [(line["log_level"], line["subject"]) for line in lines] == [("info", "CN=shop")]
    found = one.tables.users.by_certificate("CN=shop")
    assert found is not None
    assert found.name == "anna"
