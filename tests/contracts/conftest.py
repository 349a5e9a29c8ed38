"""Fixtures of the front contracts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.front import FrontKind
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import KINDS, TLS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> FrontKind:
    parameter: FrontKind = request.param
    return parameter


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def transport(request: pytest.FixtureRequest, certificates: Tls) -> Iterator[None]:
    """The test runs both ways."""
    token = TLS.set(certificates if request.param == "tls" else None)
    yield
    TLS.reset(token)
