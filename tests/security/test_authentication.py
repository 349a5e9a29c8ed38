"""Authentication of callers: signatures, certificates, remembered nonces, and the limit of failures."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.signature import signed_admin_headers, signed_messaging_headers
from quarry_mq.server.errors import TooManyFailures, Unauthenticated
from quarry_mq.server.security.admin_authentication import SHARE_MAX, SMALL_SHARE_MAX, AdminAuthenticator, AdminCall
from quarry_mq.server.security.authentication import Authenticator, Freshness
from quarry_mq.server.security.credentials import (
    CALLERS_MAX,
    SOURCE_FACTOR,
    Credentials,
    FailureLimit,
    How,
    Identity,
    source_of,
)
from quarry_mq.store.security.model import UserKind
from quarry_mq.store.security.subjects import subject_of
from tests.certificates import make_client_certificate
from tests.rpc.fake_call import FakeCall
from tests.security.users import SECRET, Counted, MemoryUsers, user

WINDOW_MS = 300_000
PER_MINUTE = 5
OTHER_SECRET = "tomorrows-secret"


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.users = MemoryUsers(
            user("orders", SECRET, OTHER_SECRET),
            user("billing", certificates=("CN=billing,O=Mill",)),
            user("ops", kind=UserKind.SUPER),
        )
        self.counted = Counted()
        self.failures = FailureLimit(PER_MINUTE, self.clock)
        credentials = Credentials(self.users, self.failures, clock=self.clock, metrics=self.counted)
        self.authenticator = Authenticator(credentials, Freshness(WINDOW_MS), self.clock)
        self.administrators = {"ops"}
        self.admin = AdminAuthenticator(credentials, WINDOW_MS, self.clock, self.administrators.__contains__)

    def call(
        self, name: str = "orders", secret: str = SECRET, *, peer: str = "192.0.2.7:1", certificate: bytes | None = None
    ) -> FakeCall:
        headers = dict(signed_messaging_headers(name, secret, now_ms=self.clock.wall_ms())) if name else {}
        return FakeCall(metadata=headers, peer=peer, certificate=certificate)

    def let_in(self, call: AdminCall) -> Identity:
        """As the guard of the admin port does it with a call that its user may make."""
        identity = self.admin.identify(call)
        self.admin.admit(call, identity)
        return identity

    def admin_call(
        self, method: str = "/a/B", nonce: str = "n" * 16, secret: str = SECRET, *, user: str = "ops"
    ) -> AdminCall:
        headers = dict(signed_admin_headers(user, secret, method, now_ms=self.clock.wall_ms(), nonce=nonce))
        return AdminCall(
            method=method,
            authorization=headers["authorization"],
            date=headers["x-quarry-date"],
            nonce=nonce,
            certificate=None,
            source=source_of("192.0.2.7:1"),
        )


def test_either_of_two_live_secrets_is_fine() -> None:
    bench = Bench()
    for secret in (SECRET, OTHER_SECRET):
        assert bench.authenticator.identify(bench.call(secret=secret)) == Identity("orders", How.SIGNATURE)


def test_unknown_disabled_and_wrong_cannot_be_told_apart() -> None:
    bench = Bench()
    bench.users.disable("billing")
    texts = set()
    for name, secret in (("nobody", SECRET), ("billing", SECRET), ("orders", "wrong-secret-indeed")):
        with pytest.raises(Unauthenticated) as refused:
            bench.authenticator.identify(bench.call(name, secret))
        texts.add(str(refused.value))
        assert refused.value.claimed == name
        assert name not in str(refused.value)
    assert len(texts) == 1


def test_calls_of_one_second_cost_one_look_at_the_user() -> None:
    bench = Bench()
    call = bench.call()
    for _ in range(5):
        bench.authenticator.identify(call)
    assert bench.users.asked == 1
    assert bench.counted.outcomes == ["signature", *["remembered"] * 4]


def test_what_is_remembered_ends_with_a_change_of_users_and_with_its_date() -> None:
    bench = Bench()
    call = bench.call()
    bench.authenticator.identify(call)
    bench.users.disable("orders")
    with pytest.raises(Unauthenticated, match="no enabled user"):
        bench.authenticator.identify(call)
    bench.users.put(user("orders"))
    bench.authenticator.identify(call)
    bench.clock.advance(WINDOW_MS / 1000 + 1)
    with pytest.raises(Unauthenticated, match="behind the broker's clock"):
        bench.authenticator.identify(call)


def test_a_certificate_stands_for_its_user_where_there_is_no_signature() -> None:
    bench = Bench()
    certificate = make_client_certificate("billing", "Shop")
    subject = subject_of(certificate)
    assert subject is not None
    assert subject.startswith("CN=billing,OU=Testing cert")
    bench.users.put(user("billing", certificates=(subject,)))
    assert bench.authenticator.identify(bench.call("", certificate=certificate)) == Identity("billing", How.CERTIFICATE)
    assert bench.authenticator.identify(bench.call(certificate=certificate)).user == "orders", "a signature decides"
    empty = {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00"}
    assert bench.authenticator.identify(FakeCall(metadata=empty, certificate=certificate)).user == "billing"
    bench.users.disable("billing")
    for shown in (certificate, make_client_certificate("other", "Shop"), b"no certificate", None):
        with pytest.raises(Unauthenticated, match="not signed"):
            bench.authenticator.identify(bench.call("", certificate=shown))


def fail(bench: Bench, name: str = "orders", *, times: int) -> list[type[Exception]]:
    """How wrong proofs of this user are answered."""
    kinds: list[type[Exception]] = []
    for _ in range(times):
        with pytest.raises((Unauthenticated, TooManyFailures)) as refused:
            bench.authenticator.identify(bench.call(name, "wrong-secret-indeed"))
        kinds.append(refused.type)
    return kinds


def test_who_fails_too_often_is_told_to_wait_until_a_while_has_passed() -> None:
    bench = Bench()
    assert fail(bench, times=PER_MINUTE + 2) == [*[Unauthenticated] * PER_MINUTE, *[TooManyFailures] * 2]
    with pytest.raises(TooManyFailures, match="failures_per_minute"):
        bench.authenticator.identify(bench.call(secret="wrong-secret-indeed"))
    with pytest.raises(Unauthenticated):
        bench.authenticator.identify(bench.call(secret="wrong-secret-indeed", peer="192.0.2.8:1"))
    bench.clock.advance(60 / PER_MINUTE)
    assert fail(bench, times=1) == [Unauthenticated]


def test_a_right_signature_passes_however_often_others_after_its_address_failed_as_its_user() -> None:
    bench = Bench()
    for _ in range(PER_MINUTE * SOURCE_FACTOR):
        fail(bench, times=2)
        bench.clock.advance(1)  # each second has a signature of its own: nothing is remembered
        assert bench.authenticator.identify(bench.call()).user == "orders"
    assert bench.counted.outcomes.count("signature") == PER_MINUTE * SOURCE_FACTOR


def test_nobody_locks_an_administrator_out_of_the_admin_port() -> None:
    bench = Bench()
    for number in range(PER_MINUTE * 3):
        with pytest.raises((Unauthenticated, TooManyFailures)):
            bench.admin.identify(bench.admin_call(nonce=f"guess-{number:010}", secret="wrong-secret-indeed"))
        assert bench.admin.identify(bench.admin_call(nonce=f"right-{number:010}")).user == "ops"


def test_wrong_proofs_of_many_names_from_one_address_are_limited_too() -> None:
    bench = Bench()
    for number in range(PER_MINUTE * SOURCE_FACTOR):
        assert fail(bench, f"guess{number}", times=1) == [Unauthenticated]
    assert fail(bench, "another", times=1) == [TooManyFailures]
    assert bench.authenticator.identify(bench.call("ops")).user == "ops"


def test_right_and_wrong_proofs_cost_the_same_before_and_beyond_the_limit() -> None:
    bench = Bench()
    fail(bench, times=PER_MINUTE)
    asked = bench.users.asked
    fail(bench, times=1)
    fail(bench, "nobody", times=1)
    assert bench.users.asked == asked + 2, "one look at the user each, known or not"


def test_a_clock_that_is_wrong_and_a_call_without_signature_are_no_guesses() -> None:
    bench = Bench()
    stale = bench.call()
    bench.clock.advance(WINDOW_MS / 1000 + 60)
    for call in (stale, bench.call("")) * (PER_MINUTE * SOURCE_FACTOR + 1):
        with pytest.raises(Unauthenticated):
            bench.authenticator.identify(call)
    assert bench.authenticator.identify(bench.call()).user == "orders"


def test_failures_are_forgotten_rather_than_kept_without_end() -> None:
    bench = Bench()
    for number in range(CALLERS_MAX + 10):
        bench.failures.failed(source_of(f"[2001:db8:0:{number:x}::1]:1"), "x")
    assert len(bench.failures._of_source._buckets) == len(bench.failures._of_user._buckets) == CALLERS_MAX


def test_one_half_of_an_ipv6_address_is_one_caller() -> None:
    bench = Bench()
    for number in range(PER_MINUTE):
        assert bench.failures.failed(source_of(f"[2001:db8::{number:x}]:1"), "x")
    assert not bench.failures.failed(source_of("[2001:db8::ffff]:1"), "x")
    assert bench.failures.failed(source_of("[2001:db8:0:1::1]:1"), "x")


def test_an_admin_call_is_good_once() -> None:
    bench = Bench()
    call = bench.admin_call()
    assert bench.let_in(call) == Identity("ops", How.SIGNATURE)
    with pytest.raises(Unauthenticated, match="already made"):
        bench.let_in(call)
    assert bench.let_in(bench.admin_call(nonce="m" * 16)).user == "ops"
    bench.clock.advance(WINDOW_MS / 1000 + 1)
    with pytest.raises(Unauthenticated, match="behind the broker's clock"):
        bench.let_in(call)


def test_an_admin_date_ahead_of_the_clock_cannot_be_used_again_while_it_is_fresh() -> None:
    bench = Bench()
    bench.clock.jump(WINDOW_MS / 1000)
    call = bench.admin_call()
    bench.clock.jump(-WINDOW_MS / 1000)
    bench.let_in(call)
    bench.clock.advance(2 * WINDOW_MS / 1000)
    with pytest.raises(Unauthenticated, match="already made"):
        bench.let_in(call)


def test_a_call_that_is_not_let_in_takes_no_nonce() -> None:
    bench = Bench()
    call = bench.admin_call()
    for _ in range(2):  # denied for want of a right: it is refused again for that, and not as a replay
        assert bench.admin.identify(call).user == "ops"
    assert bench.admin.nonces == 0
    bench.admin.admit(call, bench.admin.identify(call))
    assert bench.admin.nonces == 1


@pytest.mark.parametrize(("user", "share"), [("orders", SMALL_SHARE_MAX), ("ops", SHARE_MAX)])
def test_a_full_share_is_refused_to_its_owner_alone(user: str, share: int) -> None:
    bench = Bench()
    call, identity = bench.admin_call(user=user), Identity(user, How.SIGNATURE)
    for number in range(share):
        bench.admin.admit(call._replace(nonce=f"{number:016}"), identity)
    with pytest.raises(TooManyFailures, match="of this user"):
        bench.let_in(bench.admin_call(user=user))
    assert bench.admin.nonces == share
    other = "ops" if user == "orders" else "orders"
    assert bench.let_in(bench.admin_call(user=other)).user == other
    with pytest.raises(Unauthenticated, match="already made"):
        bench.let_in(bench.admin_call(user=user, nonce=f"{0:016}"))
    bench.clock.advance(2 * WINDOW_MS / 1000 + 1)
    assert bench.let_in(bench.admin_call(user=user)).user == user
    assert bench.admin.nonces == 1, "what is too old is forgotten, of everybody"


def test_a_user_that_gets_a_right_gets_the_large_share_at_once() -> None:
    bench = Bench()
    for number in range(SMALL_SHARE_MAX):
        bench.let_in(bench.admin_call(user="orders", nonce=f"{number:016}"))
    with pytest.raises(TooManyFailures):
        bench.let_in(bench.admin_call(user="orders"))
    bench.administrators.add("orders")
    assert bench.let_in(bench.admin_call(user="orders")).user == "orders"


def test_an_admin_signature_is_good_for_its_own_method() -> None:
    bench = Bench()
    with pytest.raises(Unauthenticated, match="no enabled user"):
        bench.admin.identify(bench.admin_call()._replace(method="/a/C"))
    with pytest.raises(Unauthenticated, match="nonce"):
        bench.admin.identify(bench.admin_call(nonce="short"))
    with pytest.raises(Unauthenticated, match="no enabled user"):
        bench.admin.identify(bench.admin_call(secret="wrong-secret-indeed"))
    assert bench.admin.nonces == 0, "strangers leave nothing behind"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7:50123", "192.0.2.7"),
        ("[2001:db8::1]:5", "2001:db8::1"),
        ("[::ffff:192.0.2.7]:5", "192.0.2.7"),
        ("unix", "None"),
    ],
)
def test_where_a_call_comes_from(peer: str, address: str) -> None:
    assert str(source_of(peer)) == address
