"""docs/migrate-from-rocketmq.md, word by word, on a store that Apache RocketMQ 5.5.0 wrote."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.compat.rocketmq_store import QueuesIn, digests_of_rocketmq
from tests.documents.pages import ROOT
from tests.documents.playing import play
from tests.documents.session import Session
from tests.documents.table import yours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SENT: Final = 3
"""The number of messages that the guide sends: one in plain text, one by a client with TLS, one in double write."""

PAGE: Final = ROOT / "docs" / "migrate-from-rocketmq.md"


def digests(root: Path) -> dict[str, str]:
    """Return the digest of every file below `root`."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder, _, names in os.walk(root)
        for path in (Path(folder) / name for name in names)
    }


def test_every_step_does_what_the_guide_says(tmp_path: Path) -> None:
    theirs = yours(PAGE, tmp_path / "page")
    before = digests(Path(theirs["ROCKETMQ_STORE"]))
    with Session(tmp_path / "page") as session:
        assert play(PAGE, session, yours=theirs) > 60
    original = Path(theirs["ROCKETMQ_STORE"])
    assert digests(original) == before != {}
    assert_rocketmq_has_everything(original, tmp_path / "page" / "store", tmp_path)


def assert_rocketmq_has_everything(original: Path, given_back: Path, scratch: Path) -> None:
    """Every queue of the store that was given back is what it was, with what the guide has sent behind it."""
    found = {}
    for store in (original, given_back):
        copy = scratch / f"{store.parent.name}-in-rocketmq"
        shutil.copytree(store, copy, ignore=shutil.ignore_patterns("lock"))
        found[store] = digests_of_rocketmq(copy, scratch, QueuesIn.FILE, timeout_s=300)
    more = {}
    for queue, digest in found[original].items():
        again = found[given_back][queue]
        assert (again.minimum, again.unreadable) == (digest.minimum, digest.unreadable)
        if again.maximum == digest.maximum:
            assert again == digest
        else:
            more[queue] = again.maximum - digest.maximum
    assert {topic for topic, _ in more} == {"acme-orders"}
    assert sum(more.values()) == SENT
