"""Certificates that several users claim, each on a member of its own: they stand for nobody, and it has to be told."""

from __future__ import annotations

from typing import Final

import structlog

from store.security.users import UserTable

log = structlog.get_logger(__name__)

USERS_NAMED_MAX: Final = 5


class CertificateDisputes:
    """Tells of each once, and when it is over."""

    def __init__(self, users: UserTable) -> None:
        self._users = users
        self._told: frozenset[str] = frozenset()

    def look(self) -> None:
        """To be called every few seconds: what has changed since the last time is told."""
        disputed = self._users.disputed_subjects
        for subject in sorted(disputed - self._told):
            claiming = (user.name for user in self._users.list() if subject in user.certificates)
            log.error(
                "a certificate is claimed by several users and stands for none",
                subject=subject,
                users=sorted(claiming)[:USERS_NAMED_MAX],
            )
        for subject in sorted(self._told - disputed):
            log.info("a certificate is no longer claimed by several users", subject=subject)
        self._told = disputed
