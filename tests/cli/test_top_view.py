"""The screen of `quarry top`: keys, sizes, refusals, members. Driven without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from unittest.mock import Mock

import grpc
import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Input, Static

from quarry_mq.cli.online.top.facts import Order, Topic
from quarry_mq.cli.online.top.screen.view import TopView
from quarry_mq.cli.online.top.screen.widgets import Details, Help, Page, Rows
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from tests.cli import overview_stub
from tests.cli.overview_stub import Stub, later, overview, served


class Screen:
    """What a person would see, and press."""

    def __init__(self, view: TopView, pilot: Pilot[None]) -> None:
        self.view = view
        self.pilot = pilot

    @property
    def head(self) -> str:
        return str(self.view.screen_stack[0].query_one("#head", Static).visual)

    @property
    def foot(self) -> str:
        return str(self.view.screen_stack[0].query_one("#foot", Static).visual)

    @property
    def remark(self) -> str:
        return str(self.view.screen_stack[0].query_one("#remark", Static).visual)

    @property
    def page(self) -> str:
        """Of the topmost screen."""
        return str(self.view.screen.query(Page).first().query_one(Static).visual)

    @property
    def names(self) -> list[str]:
        rows = self.view.screen_stack[0].query_one(Rows)
        return [str(key.value) for key in rows.rows]

    @property
    def seen(self) -> list[str]:
        """The lines as they are on the screen."""
        return [
            "".join(segment.text for segment in line)
            for line in self.view.screen._compositor.render_strips(self.view.size)
        ]

    @property
    def colours(self) -> set[int | None]:
        """The numbers of the terminal's colours on the screen; None is its own."""
        return {
            None if colour is None else colour.number
            for line in self.view.screen._compositor.render_strips(self.view.size)
            for segment in line
            if segment.style is not None
            for colour in (segment.style.color, segment.style.bgcolor)
        }

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(600):
            await self.pilot.pause(0.02)
            if condition():
                return
        raise AssertionError("\n".join([f"not in time: {what}", *self.seen]))

    async def see(self, *texts: str) -> None:
        await self.until(lambda: all(text in "\n".join(self.seen) for text in texts), f"{texts}")


@asynccontextmanager
async def shown(address: str, *, columns: int = 100, lines: int = 30, interval_s: float = 0.2) -> AsyncIterator[Screen]:
    view = TopView(address, None, interval_s=interval_s)
    async with view.run_test(size=(columns, lines)) as pilot:
        screen = Screen(view, pilot)
        yield screen


def drive(act: Callable[[Screen], object], address: str, **size: int) -> None:
    async def run() -> None:
        async with shown(address, **size) as screen:
            await act(screen)  # type: ignore[misc]

    asyncio.run(run())


def test_each_view_shows_its_matter(address: str, stub: Stub) -> None:
    stub.answers["GetOverview"] = lambda _: later(overview(), stub.count("GetOverview"))

    async def act(screen: Screen) -> None:
        await screen.see("broker-a of DefaultCluster", "in            12,346 /s", "LARGEST LAG", "[1 overview]")
        await screen.press("2")
        await screen.see("[2 topics]", "40 of 1,203 topics, busiest first", "orders-01")
        await screen.press("3")
        await screen.see("[3 groups]", "4 groups, largest lag first", "billing", "NO CONSUMER")
        await screen.press("4")
        await screen.see("[4 stages]", "SENDS  in the last", "SLOW", "most")
        await screen.press("5")
        await screen.see("[5 jobs]", "resend-messages", "MIGRATION", "refused: the second store is")
        await screen.press("1")
        await screen.see("[1 overview]", "waiting    ready 1,203,456")

    drive(act, address)


def test_a_filter_asks_the_broker_and_holds_at_once(address: str, stub: Stub) -> None:
    async def act(screen: Screen) -> None:
        await screen.press("2", "slash", *"orders-1")
        await screen.until(lambda: screen.names == [f"orders-1{digit}" for digit in "13579"], "filtered")
        assert screen.view.query_one(Input).display
        await screen.press("enter")
        assert not screen.view.query_one(Input).display
        await screen.until(lambda: 'topics with "orders-1"' in screen.remark, "the remark names it")
        assert any(getattr(request, "contains", "") == "orders-1" for _, request in stub.asked)
        await screen.press("escape")
        await screen.until(lambda: len(screen.names) == 40, "all again")

    drive(act, address)


def test_orders_take_turns(address: str, stub: Stub) -> None:
    def is_asked_for(number: int) -> bool:
        return [request.order for name, request in list(stub.asked) if name == "ListGroupFigures"][-1:] == [number]

    async def act(screen: Screen) -> None:
        await screen.press("3")
        for order, number in ((Order.NAME, 0), (Order.BUSIEST, 1), (Order.LAG, 2)):
            await screen.press("o")
            await screen.until(partial(is_asked_for, number), order.value)
            assert order.value in screen.remark

    drive(act, address)


def test_news_may_come_before_a_screen_is_mounted() -> None:
    """A view that asks again at that moment draws the screen that was opened just now."""

    def draw(*_: object) -> list[Text]:
        raise AssertionError("there is nothing to draw on")

    Details("a topic", Mock(spec=Topic), lambda: None, draw, plain=True).show()
    Help(draw, plain=True).show()
    Page().show(draw, plain=True)


def test_details_of_a_topic_and_of_a_group(address: str, stub: Stub) -> None:
    async def act(screen: Screen) -> None:
        await screen.press("2")
        await screen.until(lambda: len(screen.names) == 40, "topics")
        await screen.press("down", "enter")
        await screen.see("topic orders-01", "GROUPS  2", "audit", "esc goes back")
        assert "unknown" in screen.page
        stub.answers["ListTopicFigures"] = lambda request: pb.ListTopicFiguresResponse()
        await screen.see("not listed any more: this data is OLD", "audit")
        await screen.press("escape", "3")
        await screen.until(lambda: len(screen.names) == 4, "groups")
        await screen.press("enter")
        await screen.see("group billing", "letters not resent 0", "TOPICS  1", "orders-01")
        await screen.press("q")
        assert not isinstance(screen.view.screen, Details)

    drive(act, address)


def test_the_cursor_stays_with_its_name(address: str, stub: Stub) -> None:
    async def act(screen: Screen) -> None:
        await screen.press("2")
        await screen.until(lambda: len(screen.names) == 40, "topics")
        await screen.press("down", "down", "down")
        rows = screen.view.query_one(Rows)
        assert rows.chosen == "orders-03"

        def turned(request: pb.ListTopicFiguresRequest) -> pb.ListTopicFiguresResponse:
            found = overview_stub.topics(request)
            kept = list(found.topics)[::-1]
            del found.topics[:]
            found.topics.extend(kept)
            return found

        stub.answers["ListTopicFigures"] = turned
        await screen.until(lambda: screen.names[0] == "orders-39", "the other way round")
        assert rows.chosen == "orders-03"

    drive(act, address)


def test_a_pause_keeps_what_is_shown(address: str, stub: Stub) -> None:
    async def act(screen: Screen) -> None:
        await screen.see("12,346 /s")
        await screen.press("space")
        await screen.until(lambda: "PAUSED" in screen.head and "space go on" in screen.foot, "paused")
        stub.answers["GetOverview"] = overview(sent_per_second=777.0)
        await screen.pilot.pause(0.5)
        assert "12,346 /s" in screen.page
        await screen.press("r")
        await screen.see("777 /s", "PAUSED")
        await screen.press("space")
        await screen.until(lambda: "every 0.2 s" in screen.head, "it goes on")

    drive(act, address)


def is_in_head(screen: Screen, text: str) -> bool:
    return text in screen.head


def test_the_interval_has_steps(address: str) -> None:
    async def act(screen: Screen) -> None:
        for key, expected in (("minus", "0.5"), ("minus", "1"), ("minus", "2"), ("plus", "1"), *[("minus", "60")] * 6):
            await screen.press(key)
            if (key, expected) != ("minus", "60"):
                await screen.until(partial(is_in_head, screen, f"every {expected} s"), expected)
        await screen.until(lambda: "every 60 s" in screen.head, "the longest")

    drive(act, address)


def test_help_opens_and_closes(address: str) -> None:
    async def act(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.see("KEYS", "quit; also Ctrl-C")
        assert isinstance(screen.view.screen, Help)
        await screen.press("question_mark")
        assert not isinstance(screen.view.screen, Help)

    drive(act, address, lines=50)


@pytest.mark.parametrize("keys", [["q"], ["ctrl+c"], ["question_mark", "ctrl+c"], ["2", "slash", "ctrl+c"]])
def test_it_quits(address: str, keys: list[str]) -> None:
    async def act(screen: Screen) -> None:
        await screen.press(*keys)
        await screen.pilot.pause()
        assert not screen.view.is_running

    drive(act, address)


def test_tabs_can_be_clicked(address: str) -> None:
    async def act(screen: Screen) -> None:
        await screen.see("4 stages")
        await screen.pilot.click("#tab-stages")
        await screen.see("[4 stages]", "SENDS")

    drive(act, address)


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (24, 8)])
def test_every_view_has_room_on_any_screen(address: str, stub: Stub, size: tuple[int, int]) -> None:
    stub.answers["GetOverview"] = overview(concerns=["one " * 30, "two", "three", "four"])
    stub.answers["ListOverviews"] = overview_stub.members("one", "two", silent="two")

    async def act(screen: Screen) -> None:
        await screen.until(lambda: "broker-a" in screen.head, "an answer")
        await screen.pilot.resize_terminal(*size)
        for key in "12345":
            await screen.press(key)
            await screen.pilot.pause(0.1)
            assert len(screen.seen) == size[1]
            assert f"[{key} " in "\n".join(screen.seen)
        await screen.press("3", "enter")
        await screen.pilot.pause(0.1)
        await screen.press("escape", "question_mark")
        await screen.pilot.pause(0.1)
        await screen.press("escape")
        await screen.pilot.resize_terminal(100, 30)
        await screen.see("[3 groups]", "billing")

    drive(act, address)


def test_a_broker_that_goes_away_and_comes_back(stub: Stub) -> None:
    with served(stub) as (address, stop):
        port = int(address.rpartition(":")[2])

        async def act(screen: Screen) -> None:
            await screen.see("12,346 /s", "billing")
            await asyncio.to_thread(stop)
            await screen.see("no answer", "NO ANSWER since", "The data shown is OLD", "12,346 /s", "billing")
            await screen.press("2", "1")
            stub.answers["GetOverview"] = overview(sent_per_second=55.0)
            with served(stub, port):
                await screen.see("55.0 /s")
                assert "NO ANSWER" not in screen.head

        drive(act, address)


@pytest.mark.parametrize(
    ("code", "word", "text"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "not authenticated", "name one with quarry --context NAME top"),
        (grpc.StatusCode.PERMISSION_DENIED, "not allowed", "who may not see this (needs get on the cluster)"),
    ],
)
def test_who_may_not_look_is_told_so(address: str, stub: Stub, code: grpc.StatusCode, word: str, text: str) -> None:
    stub.refusals["GetOverview"] = (code, "needs get on the cluster")

    async def act(screen: Screen) -> None:
        await screen.see(word)
        assert text in " ".join(screen.head.split())
        assert "NO ANSWER" not in screen.head

    drive(act, address, columns=160)


def test_a_refusal_of_one_call_is_told_in_its_view(address: str, stub: Stub) -> None:
    stub.refusals["ListTopicFigures"] = (grpc.StatusCode.PERMISSION_DENIED, "needs list on topics")

    async def act(screen: Screen) -> None:
        await screen.press("2")
        await screen.until(lambda: "who may not see this (needs list on topics)" in screen.remark, "the refusal")
        await screen.press("3")
        await screen.see("billing")

    drive(act, address)


def test_members_take_turns_and_a_silent_one_is_no_trap() -> None:
    one, two = Stub(), Stub()
    two.answers["GetOverview"] = overview("broker-b")
    with served(one) as (first, _), served(two) as (second, stop_second):
        addresses = {"one": first, "two": second}
        one.answers["ListOverviews"] = overview_stub.members("one", "two", addresses=addresses)
        two.answers["ListOverviews"] = overview_stub.members("one", "two", told_by="two", addresses=addresses)

        async def act(screen: Screen) -> None:
            await screen.see("MEMBERS", "chosen")
            await screen.press("m")
            await screen.until(lambda: "broker-b" in screen.head, "the other member")
            await screen.press("m")
            await screen.until(lambda: "broker-a" in screen.head, "back at the first")
            await asyncio.to_thread(stop_second)
            await screen.press("m")
            await screen.until(lambda: "NO ANSWER since" in screen.head, "the silent one")
            await screen.press("m")
            await screen.until(lambda: "broker-a" in screen.head, "back again")

        drive(act, first, lines=50)


def test_colours_are_the_terminals_own(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def act(screen: Screen) -> None:
        await screen.see("SLOW")
        assert screen.colours >= {None, 2, 3, 6}
        assert "no colours" not in screen.foot

    drive(act, address)


def test_without_colours_it_says_so_and_has_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def act(screen: Screen) -> None:
        await screen.see("SLOW", "no colours")
        assert screen.colours == {None}
        await screen.press("question_mark", "end")
        await screen.see("NO_COLOR is set")

    drive(act, address)
