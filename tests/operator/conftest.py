"""Fixtures: both APIs of Kubernetes, and a broker that the tests of a module share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User

from quarry_mq.store.security.sealer import new_key
from tests.e2e.broker import SMALL_SEGMENTS, Broker
from tests.e2e.conftest import start_broker
from tests.operator.bench import Bench, opened
from tests.operator.fake_api import FakeApi
from tests.operator.real_api import RealApi, missing, running_api

__all__ = ["start_broker"]

FAKE_CONFIG = KubeConfig.from_one(cluster=Cluster(server="http://fake"), user=User(token="fake")).get()
OPERATOR_TOKEN = "operator"
OPERATOR = "system:serviceaccount:quarry:quarry-operator"
"""The service account that the chart's manifests give rights to."""

OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with running_api(tmp_path_factory.mktemp("kubernetes"), [(OPERATOR_TOKEN, OPERATOR)]) as api:
        yield api


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    key = folder / "security.key"
    key.write_bytes(new_key())
    key.chmod(0o600)
    environment = {"QUARRY_SECURITY_KEY_FILE": str(key), **SMALL_SEGMENTS}
    made = Broker(folder / "store", logs=folder / "logs", environment=environment)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def fake_api() -> FakeApi:
    return FakeApi()


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def open_bench(request: pytest.FixtureRequest, broker: Broker) -> OpenBench:
    """Opens a bench with the API in memory, and in slow tests with a real one."""
    transport: httpx.AsyncBaseTransport | None
    if request.param == "fake":
        config, namespace, transport = FAKE_CONFIG, "tests", request.getfixturevalue("fake_api")
    else:
        api: RealApi = request.getfixturevalue("real_api")
        namespace, transport = f"tests-{uuid.uuid4().hex[:8]}", None
        api.kubectl("create", "namespace", namespace)
        config = KubeConfig.from_file(api.kubeconfig()).get()

    def bench(address: str = broker.admin, own_user: str | None = None) -> AbstractAsyncContextManager[Bench]:
        client = AsyncClient(config, namespace=namespace, transport=transport, field_manager="tests")
        return opened(client, address, own_user)

    return bench


@pytest.fixture
def name() -> str:
    """A name that no other test gives to a thing at the broker."""
    return f"t{uuid.uuid4().hex[:10]}"
