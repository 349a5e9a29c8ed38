"""The guard of the admin port, as the settings want it."""

from __future__ import annotations

from server.faults import FaultLog
from server.rpc.admin_port.guard import AdminAccess, AdminGuard
from server.securing import Security


def make_guard(security: Security, cluster: str, faults: FaultLog) -> AdminGuard:
    """Of a broker in a cluster of this name."""
    access = None
    if security.admin_authenticator is not None:
        access = AdminAccess(
            authenticator=security.admin_authenticator,
            authorizer=security.authorizer,
            is_authorizing=security.is_authorizing,
            cluster=cluster,
        )
    return AdminGuard(access, audit=security.audit, metrics=security.metrics, faults=faults)
