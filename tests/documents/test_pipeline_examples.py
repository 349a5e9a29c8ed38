"""The Python of docs/pipeline.md runs as it stands there: one block after the other, in one program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import ROOT, blocks
from tests.documents.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE: Final = ROOT / "docs" / "pipeline.md"

BEFORE: Final = """
STORE, CHECKPOINT, FOLDER = "STORE", "checkpoint", "folder"
"""
AFTER_EACH: Final = """
for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
CHECKPOINT += "-next"
rows = spark.createDataFrame([("from Spark".encode(),)], "body binary")
"""


def test_the_examples_run(tmp_path: Path) -> None:
    examples = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(examples) > 5
    with Session(tmp_path / "page") as session:
        program = "".join([BEFORE, *(f"{each}{AFTER_EACH}" for each in examples)])
        (session.folder / "examples.py").write_text(program.replace("/var/lib/quarry", "STORE"))
        serve = session.start("QUARRY_INDEX_TIERED=true quarry serve --store STORE")
        while not serve.output():
            session.run("sleep 0.1")
        for command in (
            "curl --silent --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:9464/readyz",
            "quarry produce orders hello --count 20 && quarry topic create bills",
            "python examples.py",
        ):
            status, output = session.run(command)
            assert status == 0, "\n".join(output[-60:])
        assert any((session.folder / "folder").glob("*.parquet"))
        assert any((session.folder / "minutes").glob("*.parquet"))
        assert session.run("quarry consume bills --limit 2 | grep -c 'from Spark'").output == ["1"]
