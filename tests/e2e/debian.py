"""Debian packages, unpacked into the cache at their first use. Nothing is installed on the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.languages import INSTALL_TIMEOUT_S, cache, installed, need


def folder_of(package: str) -> Path:
    return cache() / f"debian-{package}"


def unpacked(package: str, *libraries: str) -> Path:
    """The folder with the files of the package and of others that it needs. Skips the test if they cannot be had."""
    if not folder_of(package).exists():
        need("apt-get", "dpkg")

    def install(folder: Path) -> None:
        # without apt's user, who may not write in a home directory
        words = ["apt-get", "download", "-o", "APT::Sandbox::User=root", package, *libraries]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        found = [*folder.glob("*.deb")]
        if done.returncode != 0 or not found:
            pytest.skip(f"the package {package} cannot be downloaded: {done.stderr.strip()}")
        for each in found:
            subprocess.run(["dpkg", "-x", each, folder], check=True, timeout=INSTALL_TIMEOUT_S)

    return installed(folder_of(package).name, install)
