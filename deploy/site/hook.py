"""What `make docs` does with pages before MkDocs reads them; named in mkdocs.yml.

Pages are written for whoever reads the files in the repository. There a link may lead to any file of it, lists need no
blank line before them, and a `|` in the code of a table's cell is escaped. The site has the folder `docs` alone, and
Python-Markdown other rules. So nothing here changes what a page says:

- Texts in `PAGES` become pages of the site. Other files that are linked to are copied into it, below `repository/` and
  with `.txt` at the end, so that a browser shows them. A link to a folder becomes the folder's name.
- An entry of the navigation with a `*` stands for the pages that match it, in the order of their names.
- Search shows help first: pages for whoever changes Quarry count for less (`WEIGHTS`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = "docs/"
PAGES: Final = {
    "overview.md": "README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "deploying.md": "deploy/README.md",
}
"""Pages whose text lies outside of `docs`, by their path in the site."""

WEIGHTS: Final = {
    "adr/": 0.0003,
    "formats/": 0.0003,
    "changes.md": 0.001,
    "documents.md": 0.001,
    "contributing.md": 0.001,
    "ARCHITECTURE.md": 0.01,
    "front.md": 0.01,
    "json.md": 0.01,
    "admin-calls.md": 0.1,
    "benchmarks.md": 0.1,
}
"""Search multiplies the score of a page by this factor, by the beginning of its path in the site; by 1 for all others.

A word in a heading counts a thousand times as much as one in the text, so 0.0003 puts a heading behind texts.
"""

WITHOUT_LISTS: Final = frozenset({"index.md"})
"""Pages that have the whole width: without navigation and table of contents beside them."""

WORKER: Final = "iframe-worker.js"

COPIES: Final = "repository/"
LINK: Final = re.compile(r"\[((?:[^\[\]`]|`[^`]*`)+)\]\(([^()\s]+)\)")
CODE: Final = re.compile(r"`[^`]*`")
ITEM: Final = re.compile(r"([-*]|\d+\.) ")
FENCE: Final = "```"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    names = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
    config.nav = expanded(config.nav or [], names)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for page, source in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, WORKER, abs_src_path=str(Path(__file__).with_name(WORKER))))
    for source in sorted(linked_files()):
        files.append(File.generated(config, f"{COPIES}{source}.txt", abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    page.meta["search"] = {"boost": weight(page.file.src_uri)}
    if page.file.src_uri in WITHOUT_LISTS:
        page.meta["hide"] = ["navigation", "toc"]
    return rewritten(markdown, page.file.src_uri)


def weight(page: str) -> float:
    """Return what search multiplies the score of a page by."""
    return next((value for beginning, value in WEIGHTS.items() if page.startswith(beginning)), 1.0)


def expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """The navigation with each pattern replaced by the pages that match it and are not named elsewhere."""
    named = set(_names(nav))
    return _expanded(nav, [page for page in pages if page not in named])


def rewritten(markdown: str, page: str) -> str:
    """The text of a page, for Python-Markdown. `page` is its path in the site."""
    lines: list[str] = []
    in_fence = False
    for line in markdown.splitlines():
        if line.lstrip().startswith(FENCE):
            in_fence = not in_fence
        is_item = not in_fence and ITEM.match(line)
        if is_item and lines and lines[-1].strip() and not _in_list(lines):
            lines.append("")
        lines.append(line if in_fence else _line(line, page))
    return "\n".join(lines) + "\n"


def _line(line: str, page: str) -> str:
    if line.startswith("|"):
        line = CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
    return LINK.sub(lambda link: _link(link[1], link[2], page), line)


def linked_files() -> set[str]:
    """Files of the repository, outside of `docs` and `PAGES`, that a page links to."""
    found = set()
    sources = {DOCS + path.relative_to(ROOT / DOCS).as_posix() for path in (ROOT / DOCS).rglob("*.md")}
    for source in sources | set(PAGES.values()):
        for _, target in LINK.findall((ROOT / source).read_text()):
            path = _repository_path(target, source)
            if path is not None and not path.startswith(DOCS) and (ROOT / path).is_file():
                found.add(path)
    return found - set(PAGES.values())


def _link(text: str, target: str, page: str) -> str:
    """A link as the site needs it. One that leads nowhere stays, so that the build tells of it."""
    unchanged = f"[{text}]({target})"
    path = _repository_path(target, PAGES.get(page, DOCS + page))
    if path is None:
        return unchanged
    _, _, anchor = target.partition("#")
    folder = (ROOT / path).is_dir()
    if folder and (ROOT / path / "README.md").is_file():
        path, folder = f"{path}/README.md", False
    if path.startswith(DOCS) and not folder:
        site_path = path.removeprefix(DOCS)
    elif path in PAGES.values():
        site_path = next(each for each, source in PAGES.items() if source == path)
    elif folder:
        return f"{text} (`{path}/`)"
    elif (ROOT / path).is_file():
        site_path = f"{COPIES}{path}.txt"
    else:
        return unchanged
    relative = posixpath.relpath(site_path, posixpath.dirname(page) or ".")
    return f"[{text}]({relative}{'#' if anchor else ''}{anchor})"


def _repository_path(target: str, source: str) -> str | None:
    """Return where a link of a file of the repository leads; None for other sites and for places of the same page."""
    path = target.partition("#")[0]
    if not path or ":" in path or path.startswith("/"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _in_list(lines: list[str]) -> bool:
    """Whether the last line belongs to an item: its paragraph begins with one."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
    return False


def _names(nav: Any) -> list[str]:
    match nav:
        case str():
            return [nav]
        case list():
            return [name for each in nav for name in _names(each)]
        case dict():
            return [name for each in nav.values() for name in _names(each)]
        case other:
            raise TypeError(f"an entry of the navigation that is neither a page nor a list: {other!r}")


def _expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    found: list[Any] = []
    for each in nav:
        if isinstance(each, dict):
            found.append({title: _expanded(of, pages) if isinstance(of, list) else of for title, of in each.items()})
        elif "*" in each:
            form = re.compile(re.escape(each).replace(r"\*", "[^/]*"))
            found += [page for page in pages if form.fullmatch(page)]
        else:
            found.append(each)
    return found
