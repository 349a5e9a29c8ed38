"""The module is the table of users: their names, sealed secrets and certificates."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.errors import AlreadyExists, Invalid, SecretsUnreadable, UserNotFound
from quarry_mq.store.metadata.rows import NamedRows, Resolve, RowJournal
from quarry_mq.store.security.model import (
    CERTIFICATES_MAX,
    SECRET_TEXT,
    SECRETS_MAX,
    USER_NAME,
    USERS_FAMILY,
    SealedSecret,
    SealedUser,
    Secret,
    User,
    decode_user,
    encode_user,
)
from quarry_mq.store.security.policies import PolicyTable
from quarry_mq.store.security.sealer import KEY_SETTINGS, Sealer
from quarry_mq.store.security.subjects import checked_subject

CACHED_USERS_MAX: Final = 8_192
"""The most cached users, a few kilobytes each."""

GENERATED_BYTES: Final = 24
"""Random bytes of a generated secret, which has 32 characters."""

RESEALED_AT_ONCE: Final = 64
"""Users that are resealed at a time; other changes wait meanwhile, some ten milliseconds."""

NAMED_MAX: Final = 5
"""The number of users that an error names."""


class UserTable:
    """The table holds all users of a store, in the family `users`. Any thread may call; changes are
    durable on return.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        sealer: Sealer | None,
        policies: PolicyTable | None = None,
        *,
        journal: RowJournal | None = None,
    ) -> None:
        """Open the table. `sealer` is None without a key. `policies` is the table of the users' rules.

        With a journal, `policies` has to have a journal of the same owner.
        """
        self._sealer = sealer
        self._is_shared = journal is not None
        self._policies = policies or PolicyTable(engine)
        self._rows = NamedRows[SealedUser](
            engine,
            USERS_FAMILY,
            kind="user",
            not_found=UserNotFound,
            encode=encode_user,
            decode=decode_user,
            cached_max=CACHED_USERS_MAX,
            journal=journal,
        )
        # keyed by the whole row: a user that was opened before a change is never found after it
        self._opened = lru_cache(CACHED_USERS_MAX)(self._open)
        self._changing = self._policies.changing
        self._subjects: dict[str, str] | None = None  # read when first needed; changed under _changing
        self._disputed = frozenset[str]()
        self._generation = 0

    @property
    def generation(self) -> int:
        """Return a number that grows after every change; a cached answer is valid for the number read before it."""
        return self._generation

    @property
    def disputed_subjects(self) -> frozenset[str]:
        """Return the subjects that several users claim, as changes in two stores can cause: they identify no user."""
        if self._subjects is None and self._is_shared:
            with self._changing:
                self._certified()
        return self._disputed

    def is_empty(self) -> bool:
        return self._rows.is_empty()

    def get(self, name: str) -> User | None:
        """Return the user with its secrets, or None. Raises SecretsUnreadable without the right key, StoreDamaged."""
        row = self._rows.get(name)
        return None if row is None else self._opened(row)

    def get_sealed(self, name: str) -> SealedUser | None:
        """Return the user without the texts of its secrets, or None. Needs no key. Raises StoreDamaged."""
        return self._rows.get(name)

    def by_certificate(self, subject: str) -> User | None:
        """Return the user of a certificate, by its subject as `checked_subject` writes it. Raises as `get`."""
        subjects = self._subjects
        if subjects is None:
            with self._changing:
                subjects = self._certified()
        name = subjects.get(subject)
        return None if name is None else self.get(name)

    def list(self, prefix: str = "") -> Iterator[SealedUser]:
        """Iterate over the users whose name begins with `prefix`, in name order, read a page at a time; no key is
        needed.
        """
        return self._rows.list(prefix)

    def create(self, user: User) -> SealedUser:
        """Add a user with its secrets. Raises AlreadyExists, Invalid, SecretsUnreadable for secrets without a key."""
        numbers = {each.number for each in user.secrets}
        check_user_name(user.name)
        if len(user.secrets) > SECRETS_MAX or len(numbers) < len(user.secrets) or min(numbers, default=1) < 1:
            raise Invalid(f"user {user.name}: at most {SECRETS_MAX} secrets are allowed, with numbers of their own")
        certificates = _checked_certificates(user.certificates)
        sealed = SealedUser(
            name=user.name,
            kind=user.kind,
            enabled=user.enabled,
            secrets=tuple(self._seal(user.name, each) for each in user.secrets),
            certificates=certificates,
            created_at_ms=user.created_at_ms,
            next_secret_number=max(user.next_secret_number, max(numbers, default=0) + 1),
        )
        with self._changing:
            subjects = self._certified()
            _require_free(subjects, sealed)
            if self._is_shared:
                # another store may have set rules for an earlier user of this name: they must not apply to this one
                self._rows.insert(user.name, sealed, lambda batch: self._policies.stage_removal(batch, user.name))
                self._policies.removed(user.name)
            else:
                self._rows.insert(user.name, sealed)
            self._claimed(subjects, (), sealed)
            self._generation += 1
        return sealed

    def update(self, user: User | SealedUser) -> SealedUser:
        """Set the user's kind, certificates and whether it is enabled, as in `user`; its secrets are not changed.

        Raises UserNotFound, Invalid, AlreadyExists for a certificate of another user.
        """
        certificates = _checked_certificates(user.certificates)
        with self._changing:
            before = self._required(user.name)
            after = replace(before, kind=user.kind, enabled=user.enabled, certificates=certificates)
            subjects = self._certified()
            _require_free(subjects, after)
            self._rows.replace(user.name, after)
            self._claimed(subjects, before.certificates, after)
            self._generation += 1
        return after

    def delete(self, name: str) -> None:
        """Delete a user and all its rules. Raises UserNotFound."""
        with self._changing:
            before, subjects = self._required(name), self._certified()
            self._rows.remove(name, beside=lambda batch: self._policies.stage_removal(batch, name))
            self._policies.removed(name)
            self._claimed(subjects, before.certificates, None)
            self._generation += 1

    def take_over(self, resolve: Resolve) -> None:
        """Take over rows of another store, as `NamedRows.take_over` does: secrets stay sealed."""
        with self._changing:
            if self._rows.take_over(resolve):
                if self._subjects is not None:
                    self._read_subjects()
                self._generation += 1

    def add_secret(self, name: str, text: str | None, now_ms: int) -> Secret:
        """Add a live secret to a user; if `text` is None, a generated one.

        Raises UserNotFound, Invalid when the user has the most secrets already, SecretsUnreadable without a key.
        """
        with self._changing:
            user = self._required(name)
            if len(user.secrets) >= SECRETS_MAX:
                numbers = " and ".join(str(each.number) for each in user.secrets)
                raise Invalid(f"user {name} has the secrets {numbers}, which is the maximum: remove one first")
            text = generated_secret() if text is None else text
            secret = Secret(user.next_secret_number, text, now_ms)
            sealed = self._seal(name, secret)
            self._rows.replace(
                name, replace(user, secrets=(*user.secrets, sealed), next_secret_number=secret.number + 1)
            )
            self._generation += 1
        return secret

    def remove_secret(self, name: str, number: int) -> None:
        """Remove a secret, which is then no longer valid. Raises UserNotFound, Invalid.

        The last secret of an enabled user without certificates cannot be removed: that would lock out a client by
        accident. To do that on purpose, disable the user.
        """
        with self._changing:
            user = self._required(name)
            rest = tuple(each for each in user.secrets if each.number != number)
            if len(rest) == len(user.secrets):
                raise Invalid(f"user {name} has no secret {number}")
            if not rest and user.enabled and not user.certificates:
                raise Invalid(
                    f"secret {number} is the only credential of user {name}: add another one first, or disable the user"
                )
            self._rows.replace(name, replace(user, secrets=rest))
            self._generation += 1

    def reseal(self) -> int:
        """Seal all secrets again with the first key, some users at a time; return how many secrets there are.

        Raises SecretsUnreadable if some cannot be read, before anything is changed.
        """
        self.require_readable()
        names = (row.name for row in self._rows.list(""))
        count = 0
        while page := list(islice(names, RESEALED_AT_ONCE)):
            with self._changing:
                users = [user for name in page if (user := self.get(name)) is not None]
                rows = {user.name: self._resealed(user) for user in users if user.secrets}
                self._rows.replace_many(rows)
                self._generation += 1
            count += sum(len(row.secrets) for row in rows.values())
        return count

    def _resealed(self, user: User) -> SealedUser:
        secrets_now = tuple(self._seal(user.name, each) for each in user.secrets)
        return replace(self._required(user.name), secrets=secrets_now)

    def require_readable(self) -> None:
        """Raise SecretsUnreadable, naming users whose secrets cannot be read, if there are any."""
        unreadable, reason = [], ""
        for row in self._rows.list(""):
            try:
                self._opened(row)
            except SecretsUnreadable as cause:
                unreadable.append(row.name)
                reason = str(cause)
        if unreadable:
            named = ", ".join(unreadable[:NAMED_MAX]) + (", ..." if len(unreadable) > NAMED_MAX else "")
            raise SecretsUnreadable(
                f"secrets of {len(unreadable)} users cannot be read ({named}). Of the last: {reason}"
            )

    def _required(self, name: str) -> SealedUser:
        row = self._rows.get(name)
        if row is None:
            raise UserNotFound(f"no user {name}")
        return row

    def _certified(self) -> dict[str, str]:
        """Return users by the subjects of their certificates; _changing is held."""
        return self._read_subjects() if self._subjects is None else self._subjects

    def _read_subjects(self) -> dict[str, str]:
        subjects: dict[str, str] = {}
        disputed = set()
        for row in self._rows.list(""):
            for subject in row.certificates:
                if subjects.setdefault(subject, row.name) != row.name:
                    disputed.add(subject)
        for subject in disputed:
            del subjects[subject]
        self._subjects, self._disputed = subjects, frozenset(disputed)
        return subjects

    def _claimed(self, subjects: dict[str, str], before: tuple[str, ...], after: SealedUser | None) -> None:
        """Update the subjects after a change of a user's certificates."""
        if self._disputed:
            self._read_subjects()  # a user that gives one up may leave it to another user
            return
        for subject in before:
            subjects.pop(subject, None)
        if after is not None:
            subjects.update(dict.fromkeys(after.certificates, after.name))

    def _open(self, row: SealedUser) -> User:
        return User(
            name=row.name,
            kind=row.kind,
            enabled=row.enabled,
            secrets=tuple(Secret(each.number, self._text(row.name, each), each.created_at_ms) for each in row.secrets),
            certificates=row.certificates,
            created_at_ms=row.created_at_ms,
            next_secret_number=row.next_secret_number,
        )

    def _text(self, name: str, secret: SealedSecret) -> str:
        if self._sealer is None:
            raise SecretsUnreadable(f"secret {secret.number} of user {name} cannot be read: no key, set {KEY_SETTINGS}")
        try:
            return self._sealer.open(secret.sealed)
        except SecretsUnreadable as cause:
            raise SecretsUnreadable(f"secret {secret.number} of user {name} cannot be read: {cause}") from None

    def _seal(self, name: str, secret: Secret) -> SealedSecret:
        checked_secret(name, secret.text)
        if self._sealer is None:
            raise SecretsUnreadable(f"the secret of user {name} cannot be kept: no key, set {KEY_SETTINGS}")
        return SealedSecret(secret.number, self._sealer.seal(secret.text), secret.created_at_ms)


def check_user_name(name: str) -> None:
    """Raise Invalid unless a user may have this name."""
    if not USER_NAME.fullmatch(name):
        raise Invalid(f"user name {name[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ . @ - are allowed, _ . @ - not first")


def generated_secret() -> str:
    return secrets.token_urlsafe(GENERATED_BYTES)


def checked_secret(name: str, text: str) -> str:
    """Return the text if it may be a secret. Raises Invalid, which does not show the text."""
    if not SECRET_TEXT.fullmatch(text):
        raise Invalid(f"secret of user {name}: 12 to 256 printable ASCII characters without blanks are allowed")
    return text


def _checked_certificates(subjects: tuple[str, ...]) -> tuple[str, ...]:
    if len(subjects) > CERTIFICATES_MAX:
        raise Invalid(f"certificates: {len(subjects)} subjects, at most {CERTIFICATES_MAX} are allowed")
    return tuple(dict.fromkeys(map(checked_subject, subjects)))


def _require_free(subjects: dict[str, str], user: SealedUser) -> None:
    for subject in user.certificates:
        owner = subjects.get(subject, user.name)
        if owner != user.name:
            raise AlreadyExists(f"certificate {subject} belongs to user {owner}")
