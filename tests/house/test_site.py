"""The site of the documents: built strictly, whole, and without anything from other sites."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from deploy.site import hook
from tests.house.source import ROOT

LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
"""Attributes that a browser fetches by itself, by the tag's name."""

BUILT_BY_MKDOCS: Final = {"404.html"}


class Page(HTMLParser):
    """Anchors, links and loaded addresses of a page, and the links of its navigation."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.navigation: list[str] = []
        self.without_text: list[str] = []
        self._navs = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self._navs += tag == "nav"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
            if self._navs:
                self.navigation.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        if tag == "img" and not values.get("alt"):
            self.without_text.append(values.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # never with --quiet: what MkDocs does not say it does not count as a warning either
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Return the pages by their paths in the site."""
    return {path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}


def foreign(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def missing(address: str, page: str, pages: dict[str, Page], site: Path) -> bool:
    """Return whether a link of `page` leads to a file or an anchor that the site does not have."""
    parts = urlsplit(address)
    target = os.path.normpath(Path(page).parent / unquote(parts.path)) if parts.path else page
    if (site / target).is_dir():
        target = os.path.normpath(Path(target) / "index.html")
    if target not in pages:
        return not (site / target).is_file()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[target].anchors


def test_a_page_that_lacks_something_is_found(tmp_path: Path) -> None:
    (tmp_path / "alerts.txt").touch()
    page = Page('<nav><a href="b.html#part"></a></nav><h1 id="top"></h1><img src="https://a.example/x.png" alt="">')
    pages = {"a.html": page, "b.html": Page('<a name="part"></a>')}
    assert (page.navigation, page.loaded, page.without_text) == (
        ["b.html#part"],
        ["https://a.example/x.png"],
        ["https://a.example/x.png"],
    )
    assert foreign("//a.example/x.js")
    there = ["b.html#part", "#top", "alerts.txt", "./b.html"]
    absent = ["b.html#top", "#part", "c.html", "c.txt", "../a.html"]
    assert [each for each in there + absent if missing(each, "a.html", pages, tmp_path)] == absent


def test_no_link_leads_to_a_missing_page_or_anchor(site: Path, pages: dict[str, Page]) -> None:
    broken = [
        (name, link)
        for name, page in pages.items()
        for link in page.links + page.loaded
        if name not in BUILT_BY_MKDOCS
        and urlsplit(link).scheme in {"", "file"}
        and not foreign(link)
        and missing(link, name, pages, site)
    ]
    assert not broken


def test_nothing_is_loaded_from_another_site(site: Path, pages: dict[str, Page]) -> None:
    assert not [(name, each) for name, page in pages.items() for each in page.loaded if foreign(each)]
    styles = {path: path.read_text() for path in site.rglob("*.css")}
    assert styles
    fetched = [
        address
        for text in styles.values()
        for address in re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", text)
        if foreign(address)
    ]
    assert not fetched


def test_every_document_is_in_the_navigation(pages: dict[str, Page]) -> None:
    documents = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {str(path.with_name("index") if path.name == "README" else path) + ".html" for path in documents}
    assert built <= pages.keys()
    listed = {
        os.path.normpath(Path(name).parent / urlsplit(link).path)
        for name, page in pages.items()
        for link in page.navigation
        if name not in BUILT_BY_MKDOCS and urlsplit(link).path and not foreign(link)
    }
    assert not {each for each in built if each not in listed}


def test_the_sections_are_what_readers_want_to_do() -> None:
    tabs = re.findall(r"^  - (\w+):", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], flags=re.MULTILINE)
    assert tabs == ["Home", "Start", "Use", "Run", "Troubleshoot", "Reference", "Decisions"]


def test_search_has_help_before_decisions_and_formats(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {each["location"].partition("#")[0]: each["boost"] for each in entries}
    assert boosts["faq.html"] == boosts["clients/java.html"] == 1
    quiet = [boost for page, boost in boosts.items() if page.startswith(("adr/", "formats/"))]
    assert len(quiet) > 60
    assert max(quiet) < 0.001
    unused = [each for each in hook.WEIGHTS if not any(page.startswith(each.removesuffix("md")) for page in boosts)]
    assert unused == []


def test_every_picture_is_described_and_used(site: Path, pages: dict[str, Page]) -> None:
    assert not [(name, each) for name, page in pages.items() for each in page.without_text]
    shown = {Path(each).name for page in pages.values() for each in page.loaded if "pictures/" in each}
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").iterdir()} != set()


def test_links_lead_somewhere_in_the_repository_too() -> None:
    """Pages are read as files as well, so they do not name what is there in the site alone."""
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in hook.PAGES.values())]
    links = [(page, link.partition("#")[0]) for page in sources for _, link in hook.LINK.findall(page.read_text())]
    inner = [(page, path) for page, path in links if path and not urlsplit(path).scheme]
    assert len(inner) > 300
    assert not [(page, path) for page, path in inner if not (page.parent / path).exists()]


def test_links_out_of_the_documents_are_led_to_copies() -> None:
    led = {
        "[rules](../deploy/prometheus/alerts.yaml)": "[rules](repository/deploy/prometheus/alerts.yaml.txt)",
        "[charts](../deploy/helm/variants)": "charts (`deploy/helm/variants/`)",
        "[promises](../README.md#promises)": "[promises](overview.md#promises)",
        "[decisions](adr/)": "[decisions](adr/README.md)",
        "[commands](tls.md#commands)": "[commands](tls.md#commands)",
        "[elsewhere](https://a.example)": "[elsewhere](https://a.example)",
        "[gone](../nothing.md)": "[gone](../nothing.md)",
    }
    assert hook.rewritten(", ".join(led), "kubernetes.md") == ", ".join(led.values()) + "\n"
    assert hook.rewritten("[a](docs/tls.md) [b](deploy/README.md) [c](docs/adr/)", "overview.md") == (
        "[a](tls.md) [b](deploying.md) [c](adr/README.md)\n"
    )
    assert hook.rewritten("[a](../tls.md) [b](../../store/recovery/verdict.py)", "adr/0009.md") == (
        "[a](../tls.md) [b](../repository/store/recovery/verdict.py.txt)\n"
    )


def test_rows_of_tables_are_whole() -> None:
    """A row that is broken over two lines, or has another number of cells than its header, is shown as text."""
    broken = []
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in hook.PAGES.values())]:
        cells, in_fence = 0, False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            in_fence ^= line.lstrip().startswith(hook.FENCE)
            if in_fence or not line.startswith("|"):
                cells = 0
                continue
            found = len(re.findall(r"(?<!\\)\|", line))
            if not line.endswith("|") or found != (cells or found):
                broken.append(f"{page.relative_to(ROOT)}:{number}")
            cells = found
    assert not broken


def test_lists_and_pipes_are_written_as_python_markdown_reads_them() -> None:
    assert hook.rewritten("Why:\n- one\n  more\n- two\n\n1. three\n", "a.md") == (
        "Why:\n\n- one\n  more\n- two\n\n1. three\n"
    )
    assert hook.rewritten("| `a \\| b` | c \\| d |\n", "a.md") == "| `a | b` | c \\| d |\n"
    fenced = "```\ntext\n- [a](../README.md)\n| `a \\| b` |\n```\n"
    assert hook.rewritten(fenced, "a.md") == fenced


def test_patterns_of_the_navigation_are_expanded() -> None:
    nav = ["index.md", {"Start": ["formats/README.md", "formats/*.md", "top*.md"]}, {"Faq": "faq.md"}]
    there = ["faq.md", "formats/README.md", "formats/a.md", "formats/b/c.md", "index.md"]
    assert hook.expanded(nav, there) == [
        "index.md",
        {"Start": ["formats/README.md", "formats/a.md"]},
        {"Faq": "faq.md"},
    ]
