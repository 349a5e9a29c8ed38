"""The layer over the file system is tested on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    return on_disk
