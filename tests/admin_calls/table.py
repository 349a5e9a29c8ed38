"""Every call of the admin port, and what it promises."""

from __future__ import annotations

from typing import Final

from tests.admin_calls import (
    jobs_and_clients,
    looking,
    official,
    operations,
    overview,
    topics_and_groups,
    users_and_rules,
)
from tests.admin_calls.rows import Table

TABLE: Final[Table] = {
    **official.ROWS,
    **topics_and_groups.ROWS,
    **users_and_rules.ROWS,
    **operations.ROWS,
    **jobs_and_clients.ROWS,
    **overview.ROWS,
    **looking.ROWS,
}

NOT_FOR_OPERATORS: Final = {
    "grpc.health.v1.Health": "anybody may ask (tests/conformance/test_admin_access.py)",
    "grpc.reflection.v1alpha.ServerReflection": "every user may ask (tests/conformance/test_admin_access.py)",
    "quarry.cluster.v1.ClusterService": "members sign with the cluster's key (tests/attack/test_peers.py)",
}
"""Services of the admin port whose calls have no row, and what is said of them instead."""
