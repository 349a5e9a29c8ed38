"""`docs/limits.md` has every limit that is counted, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from quarry_mq.server.front.contract import FRONT_LIMITS
from quarry_mq.server.rpc.context import EDGE_LIMITS
from tests.house.source import production_files

DOCS = Path(__file__).parents[2] / "docs" / "limits.md"
COUNTED = re.compile(r"""(?:OverLimit\(|limits_met\[|_count\()"([a-z_]+)\"""")


def test_the_page_has_the_limits_of_the_edge_and_of_the_front() -> None:
    cells = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| [^|]+ \| [^|]+ \|$", DOCS.read_text(), flags=re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)]
    assert documented == [*FRONT_LIMITS, *EDGE_LIMITS]


def test_what_is_counted_is_a_known_limit() -> None:
    """Each begins at 0: a rate of what appears with its first event would miss that one."""
    server = (path for path in production_files() if {"server", "protocol"} & {*path.parts})
    counted = {name for path in server for name in COUNTED.findall(path.read_text())}
    assert len(counted) > 10
    assert counted <= {*FRONT_LIMITS, *EDGE_LIMITS}
