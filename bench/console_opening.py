"""Measures how long it takes until a page of the console is ready in a browser, with a million queues.

Chromium opens each page as if it had been typed into a new window: files of the console come from its cache after the
first time, numbers from the broker. A page is ready when none of its sections waits for an answer any more. The peer
has a thousand queues; both are measured in turns. The goal: a second at most for each page.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.console_stores import ConsoleBroker, group_name, topic_name
from bench.harness import CannotRun, Case, Options, Sample, Scale, alternate, cpu_s_of, require_room
from quarry_mq.kv.options import MIB

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

QUESTION: Final = "How long until a page of the console is there in a browser, with a million queues?"
TARGET_MS: Final = 1_000
QUEUES_PER_TOPIC: Final = 8
WAIT_MS: Final = 60_000
THERE: Final = """() => document.querySelectorAll("main h1").length === 1
  && document.querySelectorAll("main [aria-busy=true]").length === 0"""

SIZES: Final = {
    # queues, queues of the peer, groups, rounds
    Scale.FULL: (1_000_000, 1_000, 1_000, 7),
    Scale.QUICK: (50_000, 1_000, 200, 3),
    Scale.TINY: (400, 80, 5, 1),
}
PAGES: Final = {
    "overview": "",
    "time by stage": "stages",
    "topics": "topics",
    "the busiest topics": "topics?order=FIGURE_ORDER_BUSIEST",
    "topics by a part of their name": "topics?contains={part}",
    "a topic": "topics/{topic}",
    "groups": "groups",
    "groups by their lag": "groups?order=FIGURE_ORDER_LAG",
    "a group": "groups/{group}",
    "messages of a topic": "messages?topic={topic}",
    "live tail": "tail?topic={topic}",
    "trace": "trace",
    "dead letters": "dead-letters",
    "pending": "pending",
    "lite topics": "lite",
    "clients": "clients",
    "jobs": "jobs",
    "storage": "storage",
    "migration": "migration",
    "members": "members",
    "users and rules": "users",
    "settings": "settings",
}


def run(options: Options) -> list[Case]:
    queues, peer_queues, groups, rounds = SIZES[options.scale]
    require_room(options.scratch, 2 * queues * 2_000 + 4 * 1024 * MIB)
    many, few = (
        ConsoleBroker(options.scratch / name, count // QUEUES_PER_TOPIC, QUEUES_PER_TOPIC, groups)
        for name, count in (("many", queues), ("few", peer_queues))
    )
    with _browser() as contexts, many.serving(), few.serving():
        ours = _Opened(many, next(contexts), Random(options.seed))
        theirs = _Opened(few, next(contexts), Random(options.seed))
        samples = alternate(rounds, ours.sample, theirs.sample)
    return [
        Case(
            name=f"{queues:,} queues: pages of the console in Chromium",
            unit="pages",
            peer=f"the same with {peer_queues:,}",
            ours=samples[0],
            theirs=samples[1],
            details={
                "queues": queues,
                "peer_queues": peer_queues,
                "groups": groups,
                "target_ms": TARGET_MS,
                **ours.facts(""),
                **theirs.facts("peer_"),
            },
        )
    ]


class _Opened:
    """The pages of one broker's console, with the times that they took to open."""

    def __init__(self, broker: ConsoleBroker, context: BrowserContext, random: Random) -> None:
        self._broker = broker
        self._context = context
        self._random = random
        self._times_ms: dict[str, list[float]] = {name: [] for name in PAGES}
        self._open("")  # its files are in the cache then

    def sample(self) -> Sample:
        began_s, cpu_s = time.perf_counter(), cpu_s_of(self._broker.pid)
        for name, path in PAGES.items():
            self._times_ms[name].append(self._open(path) * 1000)
        return Sample(len(PAGES), time.perf_counter() - began_s, cpu_s_of(self._broker.pid) - cpu_s)

    def _open(self, path: str) -> float:
        """Open a page in a new tab; return the seconds. Raises playwright's TimeoutError."""
        number = self._random.randrange(self._broker.topics)
        where = path.format(topic=topic_name(number), group=group_name(number % 5), part=f"{number:07d}"[3:])
        page = self._context.new_page()
        began_s = time.perf_counter()
        page.goto(f"http://{self._broker.console}/#/{where}")
        page.wait_for_function(THERE, timeout=WAIT_MS)
        taken_s = time.perf_counter() - began_s
        page.close()
        return taken_s

    def facts(self, prefix: str) -> dict[str, object]:
        return {
            f"{prefix}pages_ms": {
                name: {"p50": round(median(times)), "max": round(max(times))} for name, times in self._times_ms.items()
            },
            f"{prefix}slowest_p50_ms": round(max(median(times) for times in self._times_ms.values())),
            f"{prefix}slowest_ms": round(max(max(times) for times in self._times_ms.values())),
        }


@contextmanager
def _browser() -> Iterator[Iterator[BrowserContext]]:
    """Give browser windows that share nothing. Raises CannotRun without a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise CannotRun("playwright is not installed: make install") from None
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise CannotRun("there is no Chromium on this machine")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield iter(browser.new_context, None)
        finally:
            browser.close()
