"""Build a broker's authentication, authorization and audit from its settings."""

from __future__ import annotations

from functools import partial
from typing import Final
from zoneinfo import ZoneInfo

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.retry_topics import RetryOwners
from quarry_mq.server.front import Call
from quarry_mq.server.front.remoting import RemotingCall
from quarry_mq.server.security.admin_authentication import AdminAuthenticator
from quarry_mq.server.security.audit import Audit, AuditFile
from quarry_mq.server.security.authentication import LOCAL, Authenticator, Freshness, RemotingAuthenticator
from quarry_mq.server.security.authorization import Authorizer
from quarry_mq.server.security.credentials import Credentials, FailureLimit
from quarry_mq.server.security.gate import Gate
from quarry_mq.server.security.metrics import SecurityMetrics
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.security.model import UserKind
from quarry_mq.store.security.policies import decide
from quarry_mq.store.security.users import UserTable

log = structlog.get_logger(__name__)

USERS_NAMED_MAX: Final = 5


class CertificateDisputes:
    """Report each certificate that several users claim, once, and the end of that.

    Each of these users was given the certificate on a different member; it stands for none of them.
    """

    def __init__(self, users: UserTable) -> None:
        self._users = users
        self._told: frozenset[str] = frozenset()

    def look(self) -> None:
        """Log what has changed since the last call; to be called every few seconds."""
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


ADMIN_WINDOW_S: Final = 300


class Security:
    """Hold the security of a broker's two ports.

    `gate` is None if messaging clients need not be users, `admin_authenticator` if operators need not.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: OpenStore,
        *,
        clock: Clock,
        metrics: SecurityMetrics,
    ) -> None:
        """Raises SecretsUnreadable if users are needed and cannot be read, OSError for the audit file."""
        security, users = settings.security, store.users
        retry_owners = RetryOwners(
            lambda name: store.groups.get(name) is not None, lambda name: store.topics.get(name) is not None
        )
        has_admin = security.asks_operators
        if security.authentication or has_admin:
            users.require_readable()
        self._asks_users = security.authentication or has_admin
        self._users = users
        self._lacks_super: tuple[int, bool] | None = None
        if self.lacks_super():
            log.warning(
                "users are asked for and there is no super user",
                then="stop the broker; quarry user bootstrap STORE NAME",
            )
        file = settings.log.audit_file
        self.audit = Audit(clock, None if file is None else AuditFile(file))
        self._disputes = CertificateDisputes(users)
        self.metrics = metrics
        self.is_authorizing = security.authorization
        self.authorizer = Authorizer(users, store.policies, decide, retry_owners=retry_owners.of, metrics=metrics)
        failures = FailureLimit(security.failures_per_minute, clock)
        credentials = Credentials(users, failures, clock=clock, metrics=metrics)
        self.gate: Gate[Call] | None = None
        self.remoting_gate: Gate[RemotingCall] | None = None
        if security.authentication:
            zones = [LOCAL, *map(ZoneInfo, security.client_zones)]
            freshness = Freshness(security.date_window_s * 1000 or None, zones)
            make_gate = partial(
                Gate,
                authorizer=self.authorizer if security.authorization else None,
                users=users,
                audit=self.audit,
                metrics=metrics,
            )
            self.gate = make_gate(Authenticator(credentials, freshness, clock))
            self.remoting_gate = make_gate(RemotingAuthenticator(credentials))
        window_ms = (security.date_window_s or ADMIN_WINDOW_S) * 1000
        self.admin_authenticator: AdminAuthenticator | None = None
        if has_admin:
            administers = self.authorizer.administers if security.authorization else lambda _user: True
            self.admin_authenticator = AdminAuthenticator(credentials, window_ms, clock, administers)

    def lacks_super(self) -> bool:
        """Return whether users are asked for and no super user is enabled. All users are read after a change alone."""
        if not self._asks_users:
            return False
        generation = self._users.generation
        if self._lacks_super is None or self._lacks_super[0] != generation:
            lacks = not any(user.enabled and user.kind is UserKind.SUPER for user in self._users.list())
            self._lacks_super = generation, lacks
        return self._lacks_super[1]

    def sweep(self) -> None:
        """Write the audit's due lines, and report disputed certificates; to be called every few seconds."""
        self.audit.sweep()
        self._disputes.look()
