"""Chromium on the console: pictures of pages, what it complains of, and whether a keyboard reaches all of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

Scheme = Literal["light", "dark"]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE: Final = 1280
PHONE: Final = 375
WAIT_MS: Final = 20_000
TABS_MAX: Final = 600

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the machine")

REACHABLE: Final = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex='0']")].filter((one) =>
  !one.disabled && one.checkVisibility({visibilityProperty: true}) && one.closest("dialog") === null)"""

UNREACHED: Final = f"""() => ({REACHABLE})().filter((one) => one.dataset.reached === undefined)
  .map((one) => `${{one.tagName}} ${{one.getAttribute("href") ?? one.name ?? ""}} ${{one.textContent.slice(0, 40)}}`)"""

NAMELESS: Final = f"""() => ({REACHABLE})().filter((one) => !(one.getAttribute("aria-label") || one.labels?.length
  || one.getAttribute("aria-labelledby") || one.textContent.trim())).map((one) => one.outerHTML.slice(0, 200))"""

WORDLESS: Final = """() => [...document.querySelectorAll(".badge, .notice, .unknown")]
  .filter((one) => !/[a-z0-9]{2}/i.test(one.textContent)).map((one) => one.outerHTML)"""

OVERFLOWING: Final = """() => document.documentElement.scrollWidth > innerWidth
  ? [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 5).map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`)
    .concat("wider than the window")
  : []"""

STRUCTURE: Final = """() => ({
  headings: document.querySelectorAll("main h1").length,
  jumps: [...document.querySelectorAll("main h1, main h2, main h3")].map((one) => Number(one.tagName[1]))
    .filter((level, at, all) => at > 0 && level > all[at - 1] + 1).length,
  unnamed: document.querySelectorAll("main section:not([aria-labelledby]):not([aria-label])").length,
  tables: [...document.querySelectorAll("main table")].filter((one) => !one.caption?.textContent).length,
})"""


SCROLLING: Final = """() => [...document.querySelectorAll(".table-box:not([tabindex])")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.querySelector("caption")?.textContent}: ${one.scrollWidth} of ${one.clientWidth}`)"""

COLOURED_LINKS: Final = """() => [...document.querySelectorAll("main a[href]")]
  .filter((one) => one.checkVisibility() && !one.matches("nav a, .card") && getComputedStyle(one).fontWeight < 600
    && !getComputedStyle(one).textDecorationLine.includes("underline"))
  .map((one) => one.outerHTML.slice(0, 120))"""

# Text that can be seen, and what shows behind it: WCAG 2 wants 4.5 to 1, and 3 to 1 of large text.
FAINT: Final = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const light = (one) => one.slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(numbers(getComputedStyle(at).backgroundColor));
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const ratio = (text, back) => {
    const [low, high] = [light(over(text, back)), light(back)].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
  };
  const found = new Map();
  const look = (one, colour, text) => {
    const style = getComputedStyle(one);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const its = ratio(numbers(colour), behind(one));
    if (its < least) found.set(`${one.tagName}.${one.className} ${its.toFixed(2)}`, text.trim().slice(0, 40));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.checkVisibility({visibilityProperty: true})) continue;
    const style = getComputedStyle(one);
    look(one, one.closest("svg") && style.fill !== "none" ? style.fill : style.color, walker.currentNode.data);
  }
  for (const one of document.querySelectorAll("input, textarea, select")) {
    if (!one.checkVisibility()) continue;
    look(one, getComputedStyle(one).color, "value");
    if (one.placeholder) look(one, getComputedStyle(one, "::placeholder").color, one.placeholder);
  }
  return [...found].map(([what, text]) => `${what}: ${text}`);
}"""


class Console:
    """One window on the console at `url`."""

    def __init__(self, context: BrowserContext, url: str, pictures: Path) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.context = context
        self.mistakes: list[str] = []
        """The complaints of the browser."""
        self._url = url
        self._pictures = pictures
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.mistakes.append(f"{self.page.url}: {error}"))
        self.page.on("request", self._see)
        self.page.on("requestfailed", self._miss)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.mistakes.append(f"{self.page.url}: {message.type}: {message.text} {message.location}")

    def _see(self, request: Request) -> None:
        if not request.url.startswith((self._url, "blob:", "data:")):
            self.mistakes.append(f"{self.page.url}: a request to {request.url}")

    def _miss(self, request: Request) -> None:
        """A page that is left ends its own requests."""
        if request.failure != "net::ERR_ABORTED":
            self.mistakes.append(f"{self.page.url}: {request.failure} of {request.url}")

    def go(self, path: str) -> None:
        """`path`: what comes behind `#/`."""
        address = f"{self._url}/#/{path}"
        if self.page.url == address:
            self.page.reload()
        else:
            # what is there yet would pass for the page that is to come
            self.page.evaluate("document.querySelector('main h1')?.setAttribute('data-past', '')")
            self.page.goto(address)
        self.settle()

    def settle(self) -> None:
        """Wait until the page and all of its sections have what they asked for."""
        expect(self.page.locator("main h1:not([data-past])")).to_have_count(1, timeout=WAIT_MS)
        expect(self.page.locator("main h1[data-past]")).to_have_count(0, timeout=WAIT_MS)
        expect(self.page.locator("main [aria-busy=true]")).to_have_count(0, timeout=WAIT_MS)

    def unfold(self, title: str) -> None:
        """Open the folded part of the page that has this heading."""
        heading = self.page.locator("main summary", has=self.page.get_by_role("heading", name=title, exact=True))
        if heading.locator("xpath=..").get_attribute("open") is None:
            heading.click()
        self.settle()

    def picture(self, name: str) -> None:
        width = self.page.viewport_size["width"] if self.page.viewport_size else 0
        self._pictures.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self._pictures / f"{name}-{width}.png", full_page=True)

    def says(self, text: str | re.Pattern[str]) -> None:
        """Wait until the page's main part has the text somewhere to be seen."""
        expect(self.page.locator("main").get_by_text(text).locator("visible=true").first).to_be_visible(timeout=WAIT_MS)

    def press(self, name: str, *, within: str = "main") -> None:
        self.page.locator(within).get_by_role("button", name=name, exact=True).click()

    def field(self, label: str, *, within: str = "main") -> None:
        self.page.locator(within).get_by_label(label).first.wait_for()

    def fill(self, label: str, text: str, *, within: str = "main") -> None:
        self.page.locator(within).get_by_label(label).first.fill(text)

    def confirm(self, label: str, *, typed: str | None = None) -> None:
        """Press a button of the open dialog, which must go away by that."""
        dialog = self.page.locator("dialog[open]")
        if typed is not None:
            expect(dialog.get_by_role("button", name=label, exact=True)).to_be_disabled()
            dialog.get_by_label("to confirm").fill(typed)
        dialog.get_by_role("button", name=label, exact=True).click()
        expect(dialog).to_have_count(0, timeout=WAIT_MS)

    def assert_well_made(self) -> None:
        """Named controls, states with words, one heading of the page, nothing wider than the window."""
        structure = {"headings": 1, "jumps": 0, "unnamed": 0, "tables": 0}
        for probe in (NAMELESS, WORDLESS, OVERFLOWING, SCROLLING, COLOURED_LINKS):
            self._finds(probe, [])
        self._finds(STRUCTURE, structure)

    def assert_text_stands_out(self) -> None:
        """From what is behind it, as the page is painted now."""
        self._finds(FAINT, [])

    def _finds(self, probe: str, wanted: object) -> None:
        found = self.page.evaluate(probe)
        assert found == wanted, f"{self.page.url}: {found}"

    def stand_still(self) -> None:
        """What comes anew would have to be reached anew."""
        button = self.page.get_by_role("button", name="Stop refreshing")
        if button.count():
            button.click()
        self.settle()

    def assert_keyboard_reaches_all(self) -> None:
        """Tab goes to each control that can be seen, and each shows that it has the focus."""
        page = self.page
        self.stand_still()
        page.evaluate(
            """() => {
              window.unseen = [];
              document.addEventListener("focusin", ({target}) => {
                target.dataset.reached = "";
                const style = getComputedStyle(target);
                if (target.tabIndex < 0 || style.outlineStyle !== "none") return;
                window.unseen.push(target.outerHTML.slice(0, 120));
              });
              document.activeElement?.blur();
            }"""
        )
        for press in range(TABS_MAX):
            page.keyboard.press("Tab")
            if press % 10 == 0 and page.evaluate(UNREACHED) == []:
                break
        self._finds(UNREACHED, [])
        self._finds("window.unseen", [])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser without its own sandbox: containers do not let it have one."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(
    browser: Browser, url: str, pictures: Path, *, width: int = WIDE, scheme: Scheme = "light"
) -> Iterator[Console]:
    """A window of its own, without anybody's cookies."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="Europe/Zurich", locale="en-GB"
    )
    try:
        yield Console(context, url, pictures)
    finally:
        context.close()
