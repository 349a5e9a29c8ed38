"""The screen of `quarry top`: it handles keys and decides when to draw. Other modules draw the content."""

from __future__ import annotations

import os
import sys
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Input, Static

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.top.facts import Group, Member, Order, Topic
from quarry_mq.cli.online.top.poller import Answer, Follower, Known
from quarry_mq.cli.online.top.readings import PAGE_MAX, Reading, Wish
from quarry_mq.cli.online.top.screen.pages import head, overview_page
from quarry_mq.cli.online.top.screen.tables import (
    GROUPS,
    QUIET,
    STRONG,
    TITLE,
    TOPICS,
    Canvas,
    Shown,
    group_details,
    matching_text,
    styled,
    topic_details,
    wrapped,
)
from quarry_mq.cli.online.top.screen.widgets import Details, Help, Page, Rows, Tab, as_text
from quarry_mq.cli.online.top.screen.work_pages import stages_page, work_page
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.clock import Clock, SystemClock

VIEWS: Final = ("overview", "topics", "groups", "stages", "jobs")
WANTED: Final = {
    "overview": frozenset({"history", "topics", "groups", "migration", "jobs"}),
    "topics": frozenset({"topics"}),
    "groups": frozenset({"groups"}),
    "stages": frozenset[str](),
    "jobs": frozenset({"migration", "jobs"}),
}
"""Calls that are made while a view is shown, besides those about the broker as a whole."""

OVERVIEW_ROWS: Final = 20
INTERVALS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TICK_S: Final = 1.0
TOGETHER_S: Final = 0.05
NARROW: Final = 60
KEYS: Final = (
    ("1 - 5", "views: overview, topics, groups, stages, jobs and migration"),
    ("/", "only topics or groups with this text in their names; esc removes the filter"),
    ("o", "change the order of topics or groups"),
    ("enter", "details of the topic or group under the cursor"),
    ("m", "the next member of the cluster"),
    ("space", "pause and resume"),
    ("r", "refresh now"),
    ("+ -", "refresh more often, less often"),
    ("arrows", "move; also page up, page down, home and end"),
    ("q", "quit; also Ctrl-C"),
)
MEANINGS: Final = (
    ("unknown", "unknown: the broker has not reported it; never shown as 0"),
    ("OLD", "from before the broker stopped answering"),
    ("behind by", "age of the oldest message that the group has not finished"),
    ("at least", "lower bound over all groups: there are more groups than the broker counts"),
    ("SLOW", "p99 above 50 ms (a flush: 100 ms)"),
    ("most", "the stage that takes most of a call's time"),
    ("·", "in a curve: unknown (? without UTF-8)"),
)


class TopView(App[None]):
    """The application. It uses the terminal's own colours. Without colours (NO_COLOR) words say everything, too."""

    TITLE = "quarry top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head, #foot { height: auto; text-wrap: nowrap; text-overflow: clip; padding: 0 1; }
    #tabs { height: 1; padding: 0 0; }
    .tab { width: auto; height: 1; }
    #remark { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #page, #rows { height: 1fr; padding: 0 1; }
    .text { text-wrap: nowrap; text-overflow: clip; width: 100%; height: auto; }
    Page, Rows, Rows:focus, Input, Input:focus, ModalScreen { background: ansi_default; color: ansi_default; }
    Page, Rows {
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default; scrollbar-color: ansi_bright_black;
        scrollbar-color-hover: ansi_white; scrollbar-color-active: ansi_white; scrollbar-size-vertical: 1;
    }
    Rows > .datatable--header, Rows > .datatable--header-hover {
        background: ansi_default; color: ansi_default; text-style: dim;
    }
    Rows > .datatable--odd-row, Rows > .datatable--even-row, Rows > .datatable--hover {
        background: ansi_default; color: ansi_default;
    }
    Rows > .datatable--cursor, Rows:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    #filter { height: 1; border: none; padding: 0 1; }
    Details, Help { align: center middle; }
    #details, #help { width: 96%; max-width: 110; height: 90%; border: round; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view('{view}')", view) for number, view in enumerate(VIEWS, start=1)),
        Binding("slash", "filter", "filter", priority=True),  # before the focus gets the next keys
        Binding("o", "order", "order"),
        Binding("m", "member", "member"),
        Binding("space", "pause", "pause"),
        Binding("r", "refresh", "refresh"),
        Binding("plus,equals_sign", "faster", "faster"),
        Binding("minus", "slower", "slower"),
        Binding("question_mark", "help", "help"),
        Binding("escape", "clear_filter", "clear", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
    ]

    def __init__(self, address: str, context: Context | None, *, interval_s: float, clock: Clock | None = None) -> None:
        self.is_colourless: Final = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True)
        self._address = address
        self._chosen_context = context
        self._clock = clock or SystemClock()
        self._interval_s = interval_s
        self._plain = (getattr(sys.__stdout__, "encoding", None) or "").lower().replace("-", "") != "utf8"
        self.shown_view = "overview"
        self.contains = {"topics": "", "groups": ""}
        self.order = {"topics": Order.BUSIEST, "groups": Order.LAG}
        self._members: tuple[Member, ...] = ()
        self._member: str | None = None
        self._ways: dict[str, str] = {}
        self._is_draw_due = False
        self._follower: Follower
        self.known: Known

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="tabs"):
            for number, view in enumerate(VIEWS, start=1):
                yield Tab(number, view)
        yield Static(id="remark")
        yield Page(id="page")
        yield Rows(id="rows")
        yield Input(id="filter", placeholder="only names with this text; enter keeps the filter, esc removes it")
        yield Static(id="foot")

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self._follow(self._address)
        self.set_interval(TICK_S, self.draw)  # the ages of values grow while no answers come
        self._switch("overview")

    def _follow(self, address: str) -> None:
        self.known = Known(address, self._clock)
        self._follower = Follower(
            Reading(address, self._chosen_context), self.known, interval_s=self._interval_s, on_news=self._draw_soon
        )
        self._want()
        self._follower.start(self.run_worker)

    def on_unmount(self) -> None:
        self._follower.stop()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    # -- drawing

    def _draw_soon(self) -> None:
        """Draw soon: several answers that come close together are drawn at once."""
        if not self._is_draw_due:
            self._is_draw_due = True
            self.set_timer(TOGETHER_S, self.draw)

    def draw(self) -> None:
        """Draw the whole screen from what is known now."""
        self._is_draw_due = False
        if not self.screen_stack or not self.screen_stack[0].query("#foot"):
            return  # it is ending
        self._note_members()
        main, width = self.screen_stack[0], self.size.width
        canvas = Canvas(width=max(20, width - 2), height=self.size.height, plain=self._plain)
        main.query_one("#head", Static).update(
            as_text(head(self.known, canvas, self._status())[: max(2, self.size.height // 3)])
        )
        for tab in main.query(Tab):
            tab.show(is_chosen=tab.id == f"tab-{self.shown_view}", is_narrow=width < NARROW)
        main.query_one("#foot", Static).update(self._foot(canvas.width))
        shown = self._shown()
        remark = main.query_one("#remark", Static)
        remark.update(styled((shown.remark, QUIET)) if shown else "")
        if shown is None:
            pages = {"overview": overview_page, "stages": stages_page, "jobs": work_page}
            page = pages[self.shown_view]
            main.query_one("#page", Page).show(lambda inner: page(self.known, inner), plain=self._plain)
        else:
            main.query_one("#rows", Rows).show(shown, self.known.now_ms, plain=self._plain)
        if isinstance(self.screen, Details):
            self.screen.show()

    def _status(self) -> str:
        at_ms = self.known.overview.at_ms
        clock = time_text(at_ms)[11:] if at_ms is not None else ""
        if self._follower.is_paused:
            return f"PAUSED {clock}".rstrip()
        return f"every {self._interval_s:g} s  {clock}".rstrip()

    def _foot(self, width: int) -> Text:
        keys = [("q", "quit"), ("?", "help"), ("space", "go on" if self._follower.is_paused else "pause")]
        if self.shown_view in self.contains:
            keys += [("/", "filter"), ("o", "order"), ("enter", "details")]
        if len(self._members) > 1:
            keys.append(("m", "member"))
        keys += [("+ -", "interval"), ("r", "refresh")]
        line = styled("")
        for key, what in keys:
            if line.cell_len + len(key) + len(what) + 3 <= width:
                line.append(key, STRONG).append(f" {what}  ", QUIET)
        if self.is_colourless and line.cell_len + 10 <= width:
            line.append("no colours", QUIET)
        return line

    def _shown(self) -> Shown | None:
        """Return the shown topics or groups; None in other views. The filter also applies to old values."""
        view = self.shown_view
        if view not in self.contains:
            return None
        answer: Answer = getattr(self.known, view)  # type: ignore[type-arg]
        contains, order = self.contains[view], self.order[view].value
        if answer.value is None:
            remark = "asking" if answer.problem is None else str(answer.problem)
            return Shown(columns=TOPICS if view == "topics" else GROUPS, rows=(), remark=remark)
        rows = [row for row in answer.value.rows if contains.lower() in row.name.lower()]
        remark = f"{matching_text(len(rows), answer.value.matching, view, contains)}, {order}"
        if answer.problem is not None:
            remark = f"OLD: {answer.problem}"
        return Shown(columns=TOPICS if view == "topics" else GROUPS, rows=rows, remark=remark)

    def _help(self, canvas: Canvas) -> list[Text]:
        lines = [styled(("KEYS", TITLE))]
        for key, what in KEYS:
            lines += wrapped(what, canvas.width, first=f"{key:<11}", indent=" " * 11)
        lines += [styled(""), styled(("WORDS", TITLE))]
        for word, what in MEANINGS:
            lines += wrapped(what, canvas.width, first=f"{word:<11}", indent=" " * 11)
        if self.is_colourless:
            lines += [styled(""), *wrapped("NO_COLOR is set: no colours.", canvas.width)]
        return lines

    # -- actions of keys

    def _want(self) -> None:
        view = self.shown_view
        is_list = view in self.contains
        wish = Wish(
            contains=self.contains.get(view, ""),
            topics=self.order["topics"] if is_list else Order.BUSIEST,
            groups=self.order["groups"] if is_list else Order.LAG,
            limit=PAGE_MAX if is_list else OVERVIEW_ROWS,
        )
        self._follower.want(WANTED[view], wish)

    def _switch(self, view: str) -> None:
        self.shown_view = view
        is_list = view in self.contains
        main = self.screen_stack[0]
        main.query_one("#page").display = not is_list
        main.query_one("#rows").display = is_list
        main.query_one("#remark").display = is_list
        main.query_one("#filter", Input).display = False
        main.set_focus(main.query_one("#rows" if is_list else "#page"))
        self._want()
        self.call_after_refresh(self.draw)

    def action_view(self, view: str) -> None:
        self._switch(view)

    def on_tab_chosen(self, event: Tab.Chosen) -> None:
        self._switch(event.view)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Return whether an action is allowed: the filter opens only where it can be seen, and once."""
        return action != "filter" or (len(self.screen_stack) == 1 and not self.query_one("#filter").display)

    def action_filter(self) -> None:
        if self.shown_view not in self.contains:
            self._switch("topics")
        entry = self.query_one("#filter", Input)
        entry.value = self.contains[self.shown_view]
        entry.display = True
        self.screen.set_focus(entry)  # at once: the next typed characters belong to it

    def action_clear_filter(self) -> None:
        if self.shown_view in self.contains:
            self.query_one("#filter", Input).display = False
            self.contains[self.shown_view] = ""
            self.screen.set_focus(self.query_one("#rows"))
            self._want()
            self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.shown_view in self.contains and event.input.display:
            self.contains[self.shown_view] = event.value
            self._want()
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = False
        self.screen.set_focus(self.query_one("#rows"))

    def action_order(self) -> None:
        view = self.shown_view
        if view in self.contains:
            orders = (Order.BUSIEST, Order.LAG, Order.NAME)
            self.order[view] = orders[(orders.index(self.order[view]) + 1) % len(orders)]
            self._want()
            self.draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        view, name = self.shown_view, event.row_key.value
        first = self._row(view, name)
        if first is None:
            return

        def draw(row: Topic | Group, canvas: Canvas) -> list[Text]:
            return (
                topic_details(row, canvas, self.known.now_ms) if isinstance(row, Topic) else group_details(row, canvas)
            )

        title = f"{view.removesuffix('s')} {name}"
        self.push_screen(Details(title, first, lambda: self._row(view, name), draw, plain=self._plain))

    def _row(self, view: str, name: str | None) -> Topic | Group | None:
        page = getattr(self.known, view).value
        return next((row for row in page.rows if row.name == name), None) if page is not None else None

    def action_pause(self) -> None:
        self._follower.pause(not self._follower.is_paused)
        self.draw()

    def action_refresh(self) -> None:
        self._follower.refresh()

    def action_faster(self) -> None:
        self._pace(max((each for each in INTERVALS_S if each < self._interval_s), default=INTERVALS_S[0]))

    def action_slower(self) -> None:
        self._pace(min((each for each in INTERVALS_S if each > self._interval_s), default=INTERVALS_S[-1]))

    def _pace(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._follower.pace(interval_s)
        self.draw()

    def action_help(self) -> None:
        if not isinstance(self.screen, Help):
            self.push_screen(Help(self._help, plain=self._plain))

    def _note_members(self) -> None:
        """Remember the members, in case the chosen one stops reporting the others."""
        for member in self.known.members.value or ():
            if member.is_self:
                self._members, self._member = self.known.members.value or (), member.name
                self._ways[member.name] = self.known.address

    def action_member(self) -> None:
        """Switch to the next member, at the address that worked before, or else the one that the member reported."""
        names = [each.name for each in self._members]
        if self._member not in names or len(names) < 2:
            return
        start = names.index(self._member) + 1
        for member in (*self._members[start:], *self._members[: start - 1]):
            address = self._ways.get(member.name) or member.admin_address
            if address:
                self._member = member.name
                self._follower.stop()
                self._follow(address)
                self.draw()
                return
