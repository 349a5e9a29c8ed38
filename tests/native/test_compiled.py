"""The compiled modules: a broker has them, and the conversations of the protocol go as with their sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of
from tests.e2e.conftest import QUICK
from tests.house.source import ROOT

REPLACE_METHODS = ["test_sends_that_are_refused_together_are_tried_one_by_one"]
"""Tests that put something of theirs in the place of a method, which compiled objects do not allow."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, "native/compiled/build.py", str(made)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return made


def test_a_broker_has_them_unless_it_shall_do_without(directory: Path, tmp_path: Path) -> None:
    for settings, expected in (({}, True), ({"broker.native": False}, False)):
        environment = {**environment_of({**QUICK, **settings}), "PYTHONPATH": str(directory)}
        broker = Broker(tmp_path / f"store-{expected}", logs=tmp_path / f"logs-{expected}", environment=environment)
        broker.start()
        try:
            libraries = set(re.findall(r"quarry_compiled/(\S+)", Path(f"/proc/{broker.pid}/maps").read_text()))
            assert any(each.startswith("server.front.h2.connection.") for each in libraries) is expected
        finally:
            broker.stop()
        broker.assert_no_stack_trace()


def test_the_protocol_is_spoken_as_by_the_sources(directory: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.native.compiled_modules"]
    command += ["tests/conformance", "-k", " and ".join(f"not {each}" for each in REPLACE_METHODS)]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
