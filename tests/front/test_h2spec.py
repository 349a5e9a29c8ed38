"""h2spec, the conformance test of HTTP/2, against the h2 front."""

from __future__ import annotations

import asyncio
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import uvloop

from quarry_mq.server.front import Method, make_front
from tests.contracts.front_client import echo
from tests.e2e.languages import installed, need, run

pytestmark = pytest.mark.slow

VERSION: Final = "v2.2.1+incompatible"
PATH: Final = "/test.Service/Unary"
TIMEOUT_S: Final = 100

ALLOWED: Final = {
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded": (
        "they are whole requests, each of which is answered at once: there are never two streams"
    ),
    "Sends a dynamic table size update larger than the value of SETTINGS_HEADER_TABLE_SIZE": (
        "peers that do not mind our table size of 0 are put up with (docs/adr/0008)"
    ),
}
"""Tests that may fail, and why."""


def h2spec() -> Path:
    need("go")

    def install(folder: Path) -> None:
        module = f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"
        run(["env", f"GOBIN={folder}", "go", "install", module], directory=folder)

    return installed(f"h2spec-{VERSION}", install) / "h2spec"


def results(report: Path) -> Iterator[tuple[str, bool]]:
    """Return the description of each test, and whether it passed."""
    for suite in ET.parse(report).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            yield str(case.get("classname")), all(case.find(kind) is None for kind in ("failure", "error", "skipped"))


def test_h2spec_finds_nothing_but_what_is_allowed(tmp_path: Path) -> None:
    program, report = h2spec(), tmp_path / "report.xml"

    async def test() -> None:
        front = make_front("h2", {PATH: Method(echo)})
        host, _, port = (await front.start("127.0.0.1:0")).rpartition(":")
        command = [str(program), "--host", host, "--port", port, "--path", PATH, "--junit-report", str(report)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
        await front.stop(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
    found = list(results(report))
    failed = {name for name, passed in found if not passed}
    print(f"h2spec: {sum(passed for _, passed in found)} of {len(found)} passed")
    assert len(found) > 140
    assert failed == set(ALLOWED)
