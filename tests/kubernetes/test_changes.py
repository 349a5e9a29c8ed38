"""Tests of what an operator does to a release while clients send to it: nothing that was acknowledged is lost."""

from __future__ import annotations

import time

from tests.kubernetes.release import Release
from tests.kubernetes.table import Table


def test_install_from_nothing(release: Release, table: Table) -> None:
    began_s = time.monotonic()
    release.install({"security": {"openAdmin": False}})
    release.create_topics()
    with release.flows() as results:
        pass
    table.add("install from nothing", results, time.monotonic() - began_s)
    assert [(each.lost, each.refused, each.disordered) for each in results] == [(0, 0, 0)] * 3
    assert all(each.acknowledged for each in results)
