"""The cluster that all tests of a session share, and the table of what they saw."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT
from tests.e2e.languages import locked
from tests.kubernetes import images, programs
from tests.kubernetes.cluster import CLIENTS, CONTROL_PLANE, Cluster
from tests.kubernetes.namespaces import Namespaces
from tests.kubernetes.objects import OBJECT_STORE, object_store_pod
from tests.kubernetes.release import Release
from tests.kubernetes.table import Table

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.timeout(1_800))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of two nodes without a release. With KEEP_CLUSTER=NAME it is there again in the next run."""
    reason = programs.why_not()
    if reason:
        pytest.skip(reason)
    kept = os.environ.get("KEEP_CLUSTER", "")
    folder = programs.cache() / "run" / (kept or str(os.getpid()))
    programs.build_all()
    within = Namespaces.found(folder)
    is_found = within is not None
    made = Cluster(within or Namespaces.made(folder, keep=bool(kept), name_server=CONTROL_PLANE))
    try:
        with locked(programs.cache() / "images.lock"):
            layout = images.layout(images.build_all())
            if is_found:
                made.update_images(layout)
            else:
                made.copy_images(layout, images.of_this_tree() / "template")
        if not is_found:
            made.start()
        yield made
    finally:
        if not kept:
            made.end()


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """The rows of all cases, written to build/kubernetes.md at the end."""
    made = Table()
    yield made
    made.write(ROOT / "build" / "kubernetes.md")


@pytest.fixture
def release(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Release]:
    """A release that is not installed yet, in a namespace that is named after the test and deleted at its end."""
    name = request.node.name.removeprefix("test_").replace("_", "-").partition("[")[0][:40].strip("-")
    with cluster.namespace(name) as namespace:
        yield Release(cluster, namespace)


@pytest.fixture
def object_store(cluster: Cluster) -> Iterator[str]:
    """Yield the address of an object store that has no bucket yet and takes any key."""
    cluster.apply(*object_store_pod(CLIENTS))
    try:
        cluster.wait_for_pods(CLIENTS, OBJECT_STORE)
        yield f"http://{OBJECT_STORE}.{CLIENTS}.svc.cluster.local:5000"
    finally:
        cluster.kubectl("delete", "pod,service", OBJECT_STORE, "--namespace", CLIENTS, "--grace-period=0", "--force")
