"""The site in a browser: it asks nobody else, and its search finds what it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import sync_playwright

from tests.house.source import ROOT

CHROMIUM: Final = shutil.which("chromium")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        pass


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_from_here_alone_and_are_found(scheme: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)], cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM)
            page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
            asked: list[str] = []
            failed: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
            page.on("pageerror", lambda error: failed.append(str(error)))
            here = f"http://127.0.0.1:{server.server_port}/"
            page.goto(f"{here}concepts.html")
            assert page.locator("article img").evaluate_all("all => all.every(each => each.naturalWidth > 0)")
            page.get_by_placeholder("Search").click()
            page.get_by_placeholder("Search").press_sequentially("QuarryDiskFills")
            page.wait_for_selector(".md-search-result__link")
            links = page.locator(".md-search-result__link").evaluate_all("all => all.map(each => each.href)")
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert any(link.startswith(f"{here}runbook.html") for link in links), links
    assert not failed
    assert asked
    assert not [url for url in asked if not url.startswith((here, "data:", "blob:"))]
