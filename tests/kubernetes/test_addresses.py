"""Tests of the addresses that clients get: each `advertise.kind`, from the place where its clients are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import trustme

from tests.kubernetes import ingress
from tests.kubernetes.release import GROUPS, GRPC, Release, Result, new_key
from tests.kubernetes.table import Table

DOMAIN = "mq.example.com"
NODE_PORT = 31_080


def all_arrives(results: Sequence[Result]) -> None:
    assert all(each.acknowledged for each in results), results
    assert not any(each.lost or each.refused or each.disordered for each in results), results


def test_pod(release: Release, table: Table) -> None:
    """Clients in the cluster get the names of pods."""
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.install({"replicas": 2})
    release.create_topics()
    began_s = time.monotonic()
    with release.flows() as results:
        time.sleep(3)
    table.add("advertise.kind pod", results, time.monotonic() - began_s)
    all_arrives(results)


def test_node_port(release: Release, table: Table) -> None:
    """Clients that reach the machines get a port of a machine."""
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.install({"replicas": 2, "advertise": {"kind": "node-port", "nodePort": NODE_PORT}})
    release.create_topics()
    began_s = time.monotonic()
    with release.flows_outside(f"{release.cluster.node(1).address}:{NODE_PORT}") as results:
        time.sleep(3)
    table.add("advertise.kind node-port", results, time.monotonic() - began_s)
    all_arrives(results)


def test_port_forward(release: Release, table: Table) -> None:
    """A client on a laptop gets the address that it dialled, or in the remoting protocol the port of the pod."""
    release.install({"security": {"openAdmin": False}, "advertise": {"kind": "dialled"}})
    release.create_topics()
    began_s = time.monotonic()
    with (
        release.cluster.port_forward("pod/quarry-0", "8081:8081", namespace=release.namespace),
        release.flows_outside("127.0.0.1:8081") as results,
    ):
        time.sleep(3)
    table.add("advertise.kind dialled, port-forward", results, time.monotonic() - began_s)
    all_arrives(results)


def test_ingress(release: Release, table: Table) -> None:
    """A client outside gets one address for all pods, where a proxy passes TLS through by the name of the pod.

    The client of RocketMQ 4 for Go has no TLS.
    """
    authority = trustme.CA()
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.certificate(authority, f"*.{DOMAIN}")
    release.install(
        {
            "replicas": 2,
            "tls": {"enabled": True},
            "advertise": {"kind": "ingress", "host": DOMAIN, "ingressClass": ingress.CLASS},
            "networkPolicy": {"clients": [{"podSelector": {"matchLabels": ingress.LABELS}}]},
        }
    )
    release.create_topics()
    with ExitStack() as stack:
        address = stack.enter_context(ingress.controller(release))
        release.cluster.name_outside(address, *(f"{pod}.{DOMAIN}" for pod in release.pods))
        began_s = time.monotonic()
        endpoint = f"{release.pods[0]}.{DOMAIN}:443"
        with release.flows_outside(endpoint, clients=(GRPC, GROUPS), authority=authority) as results:
            time.sleep(3)
        table.add("advertise.kind ingress", results, time.monotonic() - began_s)
    all_arrives(results)
