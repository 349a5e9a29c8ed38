"""The table of users: what is kept, what is refused, and that no secret lies there to be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.errors import AlreadyExists, Invalid, SecretsUnreadable, StoreDamaged, UserNotFound
from quarry_mq.store.security.model import CERTIFICATES_MAX, SECRET_TEXT, Action, Secret, User, UserKind, encode_user
from quarry_mq.store.security.users import RESEALED_AT_ONCE
from quarry_mq.store.state.identity import FAMILIES, USERS
from tests.users.tables import FIRST_KEY, SECOND_KEY, SECRET, Tables, orders, rule, tables_in

OTHER = "staple-and-more-of-it"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "quarry"


@pytest.fixture
def tables() -> Tables:
    return Tables(MemoryEngine(FAMILIES, write_ahead_log=True), FIRST_KEY)


def test_a_user_comes_back_whole_after_a_restart(directory: Path) -> None:
    user = User(
        name="a.b_c@d-e",
        kind=UserKind.SUPER,
        enabled=False,
        secrets=(Secret(1, SECRET, 5), Secret(4, OTHER, 6)),
        certificates=("CN=orders,O=Shop",),
        created_at_ms=7,
    )
    kept = replace(user, next_secret_number=5)
    with tables_in(directory, FIRST_KEY) as tables:
        assert tables.users.is_empty()
        tables.users.create(user)
        assert tables.users.get(user.name) == kept
        assert not tables.users.is_empty()
    with tables_in(directory, FIRST_KEY) as tables:
        assert tables.users.get(user.name) == kept
        assert tables.users.by_certificate("CN=orders,O=Shop") == kept
        assert tables.users.get("nobody") is None
        assert tables.users.by_certificate("CN=nobody") is None


def test_no_file_of_the_database_holds_a_secret(directory: Path) -> None:
    with tables_in(directory, FIRST_KEY) as tables:
        tables.users.create(orders())
        generated = tables.users.add_secret("orders", None, 1)
        assert_nowhere(directory, SECRET, generated.text)  # the write-ahead log
    with tables_in(directory, SECOND_KEY, FIRST_KEY) as tables:
        tables.users.reseal()
        assert_nowhere(directory, SECRET, generated.text)  # the tables that recovery made of it


def assert_nowhere(directory: Path, *texts: str) -> None:
    contents = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert any(b"orders" in content for content in contents.values())
    for text in texts:
        assert [name for name, content in contents.items() if text.encode() in content] == []


def test_no_value_shows_a_secret(tables: Tables) -> None:
    tables.users.create(orders())
    user, sealed = tables.users.get("orders"), tables.users.get_sealed("orders")
    assert user is not None
    assert SECRET not in repr(user)
    assert SECRET not in repr(sealed)
    assert SECRET not in repr(list(tables.users.list()))
    assert SECRET not in repr(user.secrets[0])


@pytest.mark.parametrize("keys", [(), (SECOND_KEY,)])
def test_without_the_right_key_secrets_are_unreadable_and_the_rest_is_not(
    directory: Path, keys: tuple[bytes, ...]
) -> None:
    with tables_in(directory, FIRST_KEY) as tables:
        tables.users.create(orders())
        tables.users.create(User(name="cards", certificates=("CN=cards",)))
    with tables_in(directory, *keys) as tables:
        for _ in range(2):
            with pytest.raises(SecretsUnreadable, match=r"secret 1 of user orders .* security\.key_file"):
                tables.users.get("orders")
        with pytest.raises(SecretsUnreadable, match=r"secrets of 1 users cannot be read \(orders\)"):
            tables.users.require_readable()
        with pytest.raises(SecretsUnreadable):
            tables.users.reseal()
        assert tables.users.by_certificate("CN=cards") is not None
        listed = list(tables.users.list())
        assert [user.name for user in listed] == ["cards", "orders"]
        assert [secret.number for secret in listed[1].secrets] == [1]
        tables.users.update(replace(listed[1], enabled=False))
        tables.users.remove_secret("orders", 1)
        tables.users.require_readable()
        tables.users.delete("orders")


def test_without_a_key_no_secret_is_taken(directory: Path) -> None:
    with tables_in(directory) as tables:
        with pytest.raises(SecretsUnreadable, match=r"set security\.key_file"):
            tables.users.create(orders())
        tables.users.create(User(name="cards", certificates=("CN=cards",)))
        with pytest.raises(SecretsUnreadable, match=r"set security\.key_file"):
            tables.users.add_secret("cards", None, 1)
        tables.users.require_readable()


def test_secrets_move_to_another_key(directory: Path) -> None:
    with tables_in(directory, FIRST_KEY) as tables:
        tables.users.create(orders())
        tables.users.add_secret("orders", OTHER, 2)
        tables.users.create(User(name="cards", certificates=("CN=cards",)))
    with tables_in(directory, SECOND_KEY, FIRST_KEY) as tables:
        tables.users.require_readable()
        assert tables.users.reseal() == 2
        assert tables.users.get("orders") == replace(
            orders(), secrets=(*orders().secrets, Secret(2, OTHER, 2)), next_secret_number=3
        )
    with tables_in(directory, SECOND_KEY) as tables:
        tables.users.require_readable()
        user = tables.users.get("orders")
        assert user is not None
        assert [secret.text for secret in user.secrets] == [SECRET, OTHER]


def test_secrets_of_very_many_users_move_to_another_key() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    before = Tables(engine, FIRST_KEY)
    for number in range(3 * RESEALED_AT_ONCE + 1):
        before.users.create(replace(orders(), name=f"user-{number}"))
    assert Tables(engine, SECOND_KEY, FIRST_KEY).users.reseal() == 3 * RESEALED_AT_ONCE + 1
    Tables(engine, SECOND_KEY).users.require_readable()


def test_two_secrets_live_beside_each_other_and_numbers_never_come_again(tables: Tables) -> None:
    tables.users.create(orders())
    second = tables.users.add_secret("orders", OTHER, 2)
    assert second == Secret(2, OTHER, 2)
    with pytest.raises(Invalid, match="has the secrets 1 and 2, which is the maximum"):
        tables.users.add_secret("orders", None, 3)
    tables.users.remove_secret("orders", 2)
    third = tables.users.add_secret("orders", None, 4)
    assert third.number == 3
    tables.users.remove_secret("orders", 1)
    user = tables.users.get("orders")
    assert user is not None
    assert user.secrets == (third,)
    with pytest.raises(Invalid, match="no secret 1"):
        tables.users.remove_secret("orders", 1)


def test_generated_secrets_are_long_differ_and_fit(tables: Tables) -> None:
    tables.users.create(User(name="orders"))
    texts = [tables.users.add_secret("orders", None, 0).text for _ in range(2)]
    assert texts[0] != texts[1]
    assert all(SECRET_TEXT.fullmatch(text) and len(text) == 32 for text in texts)


def test_the_last_secret_goes_only_when_nobody_needs_it(tables: Tables) -> None:
    tables.users.create(orders())
    with pytest.raises(Invalid, match="add another one first, or disable the user"):
        tables.users.remove_secret("orders", 1)
    tables.users.update(replace(orders(), certificates=("CN=orders",)))
    tables.users.remove_secret("orders", 1)
    tables.users.create(replace(orders(), name="other"))
    tables.users.update(replace(orders(), name="other", enabled=False))
    tables.users.remove_secret("other", 1)


def test_an_update_leaves_secrets_as_they_are(tables: Tables) -> None:
    tables.users.create(orders())
    tables.users.update(User(name="orders", kind=UserKind.SUPER, enabled=False, certificates=("CN=a", "CN=a")))
    assert tables.users.get("orders") == replace(
        orders(), kind=UserKind.SUPER, enabled=False, certificates=("CN=a",), next_secret_number=2
    )


def test_a_certificate_stands_for_one_user(tables: Tables) -> None:
    tables.users.create(User(name="a", certificates=("CN=one", "CN=two")))
    with pytest.raises(AlreadyExists, match="CN=two belongs to user a"):
        tables.users.create(User(name="b", certificates=("CN=two",)))
    assert tables.users.get("b") is None
    tables.users.create(User(name="b", certificates=("CN=three",)))
    with pytest.raises(AlreadyExists):
        tables.users.update(User(name="b", certificates=("CN=one",)))
    tables.users.update(User(name="a", certificates=("CN=two",)))
    assert tables.users.by_certificate("CN=one") is None
    tables.users.update(User(name="b", certificates=("CN=one",)))
    tables.users.delete("a")
    tables.users.update(User(name="b", certificates=("CN=two",)))
    found = tables.users.by_certificate("CN=two")
    assert found is not None
    assert found.name == "b"


@pytest.mark.parametrize("subject", ["", "orders", "CN=orders, O=Shop", "CN=", "CN=a\nO=b", "CN=" + "a" * 600])
def test_a_subject_in_another_spelling_is_refused(tables: Tables, subject: str) -> None:
    with pytest.raises(Invalid, match="certificate subject"):
        tables.users.create(User(name="a", certificates=(subject,)))


@pytest.mark.parametrize("name", ["", "a/b", "-a", ".a", "a b", "ä", "a" * 65, "a\n", "*", "a\x00"])
def test_other_names_are_refused(tables: Tables, name: str) -> None:
    with pytest.raises(Invalid, match="user name"):
        tables.users.create(User(name=name))
    assert tables.users.is_empty()


@pytest.mark.parametrize(
    "text", ["", "eleven-long", "with a blank in it", "a" * 257, "ümläute-in-it-too", "tab\tin-it-xxxx"]
)
def test_other_secrets_are_refused_and_not_shown(tables: Tables, text: str) -> None:
    with pytest.raises(Invalid, match="secret of user orders: 12 to 256 printable") as caught:
        tables.users.create(orders(text))
    assert not text or text not in str(caught.value)
    tables.users.create(User(name="orders"))
    with pytest.raises(Invalid, match="secret of user orders"):
        tables.users.add_secret("orders", text, 0)


def test_limits_and_repetitions_are_refused(tables: Tables) -> None:
    tables.users.create(orders())
    with pytest.raises(AlreadyExists, match="user orders exists"):
        tables.users.create(orders())
    with pytest.raises(Invalid, match="at most 2 secrets"):
        tables.users.create(User(name="a", secrets=tuple(Secret(number, SECRET, 0) for number in (1, 2, 3))))
    with pytest.raises(Invalid, match="numbers of their own"):
        tables.users.create(User(name="a", secrets=(Secret(1, SECRET, 0), Secret(1, OTHER, 0))))
    subjects = tuple(f"CN={number}" for number in range(CERTIFICATES_MAX + 1))
    with pytest.raises(Invalid, match="certificates: 17 subjects, at most 16"):
        tables.users.create(User(name="a", certificates=subjects))


def test_who_does_not_exist_is_not_found(tables: Tables) -> None:
    for change in (
        lambda: tables.users.update(User(name="ghost")),
        lambda: tables.users.delete("ghost"),
        lambda: tables.users.add_secret("ghost", None, 0),
        lambda: tables.users.remove_secret("ghost", 1),
        lambda: tables.policies.put_rule("ghost", rule("*")),
    ):
        with pytest.raises(UserNotFound, match="no user ghost"):
            change()


def test_a_user_that_is_made_again_has_none_of_the_rules_it_had(directory: Path) -> None:
    with tables_in(directory, FIRST_KEY) as tables:
        tables.users.create(orders())
        tables.policies.put_rule("orders", rule("topic:orders", Action.PUB))
        tables.users.delete("orders")
        assert not tables.policies.get("orders").rules
        tables.users.create(orders())
        assert not tables.policies.get("orders").rules
        assert list(tables.policies.list()) == []
    with tables_in(directory, FIRST_KEY) as tables:
        assert not tables.policies.get("orders").rules


def test_every_change_is_told_by_the_generation(tables: Tables) -> None:
    users, policies = tables.users, tables.policies
    seen = [users.generation]
    for change in (
        lambda: users.create(orders()),
        lambda: users.add_secret("orders", None, 0),
        lambda: users.remove_secret("orders", 1),
        lambda: users.update(User(name="orders", enabled=False)),
        users.reseal,
        lambda: users.delete("orders"),
    ):
        before = policies.generation
        change()
        seen.append(users.generation)
    assert seen == sorted(set(seen))
    assert policies.generation > before, "its rules went with the user"


def test_a_damaged_row_is_named() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    tables = Tables(engine, FIRST_KEY)
    sealed = tables.users.create(orders())
    for damaged in (b"{", b"[]", encode_user(sealed).replace(b"normal", b"divine"), b'{"format":1,"kind":"super"}'):
        batch = engine.batch()
        batch.put(engine.family(USERS), b"orders", damaged)
        engine.write(batch)
        with pytest.raises(StoreDamaged, match="table users, row 'orders'"):
            Tables(engine, FIRST_KEY).users.get("orders")
