"""The site in a browser, from a server and from files: it asks nobody else, and its search finds what it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.house.source import ROOT

CHROMIUM: Final = shutil.which("chromium")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        pass


pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

WITH_DECISIONS: Final = {
    "flush": ("faults.html", "glossary.html"),
    "garbage": ("faults.html", "metrics.html"),
    "self-signed certificate": ("tls.html",),
}
"""Words in the titles of decisions, and pages that help who looks for them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(directory)], cwd=ROOT, check=True)
    return directory


def found(page: Page, text: str) -> list[str]:
    """Return the addresses that the search shows, the best first."""
    page.get_by_placeholder("Search").click()
    page.get_by_placeholder("Search").press_sequentially(text)
    page.wait_for_selector(".md-search-result__link")
    links: list[str] = page.locator(".md-search-result__link").evaluate_all("all => all.map(each => each.href)")
    return links


def test_search_works_from_files_and_shows_help_before_decisions(site: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        failed: list[str] = []
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        for text, pages in WITH_DECISIONS.items():
            page.goto((site / "index.html").as_uri())
            links = found(page, text)
            decisions = [number for number, link in enumerate(links) if "/adr/" in link]
            helping = [number for number, link in enumerate(links) if urlsplit(link).path.endswith(pages)]
            assert helping, links
            assert min(helping) < min(decisions, default=len(links)), links
        browser.close()
    assert not failed
    assert not [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:"))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_from_here_alone_and_are_found(scheme: str, site: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
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
            links = found(page, "QuarryDiskFills")
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert any(link.startswith(f"{here}runbook.html") for link in links), links
    assert not failed
    assert asked
    assert not [url for url in asked if not url.startswith((here, "data:", "blob:"))]
