"""Tests of what an operator does to a release while clients send to it: nothing that was acknowledged is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
import trustme

from tests.deploy.manifests import CHART, ROOT
from tests.kubernetes import images
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.release import (
    GROUPS,
    GRPC,
    NAME,
    Release,
    new_key,
    no_producer_stops,
    nothing_is_lost,
    some_shards,
)
from tests.kubernetes.table import Table

LEAVES_SOON: Final = {"cluster": {"leave_delay_ms": 5_000}}
"""Settings for cases with many restarts: clients may not have new routes when a member ends."""


@pytest.fixture(scope="module")
def shards(cluster: Cluster) -> Iterator[Release]:
    """A release of two members that the tests of this module change; the last one of them adds a member."""
    with some_shards(cluster, "shards", 2) as made:
        yield made


def shows(release: Release, pod: str, certificate: str) -> bool:
    return release.shown_certificate(pod).strip() == certificate.strip()


def test_install_from_nothing(release: Release, table: Table) -> None:
    began_s = time.monotonic()
    release.install({"security": {"openAdmin": False}})
    release.create_topics()
    with release.flows() as results:
        pass
    table.add("install from nothing", results, time.monotonic() - began_s)
    no_producer_stops(results)
    assert not any(each.refused for each in results)


def test_grow_from_one_to_three_and_shrink_to_two(release: Release, table: Table) -> None:
    """A member that leaves is drained, read empty, stopped and removed, in this order."""
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.install()
    release.create_topics()
    began_s = time.monotonic()
    with release.flows() as grown:
        release.change({"replicas": 3})
        release.wait_for_members(3)
    table.add("scale 1 -> 3", grown, time.monotonic() - began_s)
    began_s = time.monotonic()
    leaving = f"{NAME}-2"
    with release.flows() as shrunk:
        release.quarry("cluster", "drain", leaving)
        wait_until(lambda: release.unread(leaving) == 0, f"{leaving} is read empty")
        release.change({"replicas": 2})
        wait_until(lambda: not release.is_reachable(leaving), f"{leaving} is away")
        release.quarry("cluster", "remove", leaving, "--yes")
    table.add("scale 3 -> 2", shrunk, time.monotonic() - began_s)
    assert [each["name"] for each in release.members()] == release.pods
    no_producer_stops(shrunk)
    no_producer_stops(grown)


def test_values_change(shards: Release, table: Table) -> None:
    hours = 25 + int(float(shards.setting("expiry.retention_hours")))
    began_s = time.monotonic()
    with shards.flows() as results:
        shards.change({"settings": {"expiry": {"retention_hours": hours}, **LEAVES_SOON}})
    table.add("change of a value", results, time.monotonic() - began_s)
    assert float(shards.setting("expiry.retention_hours")) == hours
    no_producer_stops(results)


def test_change_of_the_key_of_the_cluster(shards: Release, table: Table) -> None:
    """The new key is accepted, then used, then alone; all pods are restarted after each step."""
    shards.change({"settings": LEAVES_SOON})
    old, new = shards.read_secret("quarry-cluster")["cluster.key"].strip(), new_key().strip()
    began_s = time.monotonic()
    with shards.flows() as results:
        for keys in ([old, new], [new, old], [new]):
            shards.secret("quarry-cluster", {"cluster.key": "\n".join(keys)})
            shards.restart()
            shards.wait_for_members(2)
    table.add("change of the cluster's key", results, time.monotonic() - began_s)
    nothing_is_lost(results)
    known = shards.cluster.exec(f"{NAME}-1", "cat", "/run/quarry/cluster.key", namespace=shards.namespace)
    assert known.strip() == new


def test_rolling_restart(shards: Release, table: Table) -> None:
    shards.change({"replicas": 3, "settings": {"cluster": {"leave_delay_ms": 35_000}}})
    shards.wait_for_members(3)
    began_s = time.monotonic()
    with shards.flows() as results:
        shards.restart()
    table.add("rolling restart of 3", results, time.monotonic() - began_s)
    no_producer_stops(results)
    # members leave before they stop, and clients have new routes by then
    assert not any(each.refused for each in results), results


def test_upgrade_from_the_commit_before(release: Release, table: Table) -> None:
    """Chart and image of the commit before the last one, then those of this tree."""
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    with images.commit_before() as source:
        before = {"replicas": 2, "image": {"tag": images.BEFORE.rpartition(":")[2]}}
        release.install(before, chart=source / CHART.relative_to(ROOT))
    release.create_topics()
    began_s = time.monotonic()
    with release.flows() as results:
        release.install({"replicas": 2})
        release.wait_for_members(2)
    table.add("upgrade from the commit before", results, time.monotonic() - began_s)
    no_producer_stops(results)


def test_new_certificates_are_loaded_without_a_restart(release: Release, table: Table) -> None:
    authority = trustme.CA()
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.certificate(authority)
    release.install({"replicas": 2, "tls": {"enabled": True}})
    release.create_topics()
    started = [release.start_of(pod) for pod in release.pods]
    began_s = time.monotonic()
    with release.flows(clients=(GRPC, GROUPS), authority=authority) as results:
        new = release.certificate(authority)
        for pod in release.pods:
            wait_until(partial(shows, release, pod, new), f"{pod} shows the new certificate")
    table.add("renewal of the certificate", results, time.monotonic() - began_s)
    assert [release.start_of(pod) for pod in release.pods] == started
    no_producer_stops(results)
    assert not any(each.refused for each in results)
