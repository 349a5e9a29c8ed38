"""Fixtures of the contracts of fronts and of consume queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.server.front import FrontKind
from quarry_mq.store.consumequeue import ConsumeQueueStore
from tests.certificates import Tls, make_tls
from tests.consumequeue.backings import BACKINGS, Backing
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


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backing]:
    made = BACKINGS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def queues(backing: Backing) -> ConsumeQueueStore:
    return backing.open()
