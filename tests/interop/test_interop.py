"""Every client stack passes every case, on both fronts, in plain text and over TLS."""

from __future__ import annotations

from typing import get_args

import pytest

from quarry_mq.server.front import FrontKind
from tests.e2e.languages import INSTALL_TIMEOUT_S
from tests.interop.row import CASES, CLIENT_TIMEOUT_S, Certificates, outcomes_of
from tests.interop.stacks import STACKS, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_TIMEOUT_S + CLIENT_TIMEOUT_S)]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("front", get_args(FrontKind))
@pytest.mark.parametrize("stack", STACKS, ids=[stack.name for stack in STACKS])
def test_a_client_stack_passes_every_case(
    stack: Stack, front: FrontKind, secure: bool, certificates: Certificates
) -> None:
    outcomes = outcomes_of(stack.command(), front, certificates if secure else None)

    assert [outcome for outcome in outcomes if outcome.ok is False] == []
    assert [outcome.case for outcome in outcomes] == list(CASES)
