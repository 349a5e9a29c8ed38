"""The parts of the screen: tabs, a page of text, a table of topics or groups, a details window, and help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from quarry_mq.cli.online.top.facts import Group, Topic
from quarry_mq.cli.online.top.screen.tables import COLUMN_GAP, Canvas, Shown, fitted, fitting, styled

MARGIN: Final = 2
"""Columns of a page that its scroll bar may need."""

Draw = Callable[[Canvas], list[Text]]


def as_text(lines: Sequence[Text]) -> Text:
    return Text("\n", no_wrap=True, end="").join(lines)


class Tab(Static):
    """A view's name; it is chosen by its number or by a click."""

    class Chosen(Message):
        """The user clicked the tab."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view: Final = view

    def __init__(self, number: int, view: str) -> None:
        super().__init__(id=f"tab-{view}", classes="tab")
        self._number = number
        self._view = view

    def show(self, *, is_chosen: bool, is_narrow: bool) -> None:
        """Show the tab. On a narrow screen only the chosen tab has its name; brackets mark it."""
        name = f"{self._number} {self._view}" if is_chosen or not is_narrow else f"{self._number}"
        self.update(styled((f"[{name}]", "bold") if is_chosen else (f" {name} ", "dim")))

    def on_click(self) -> None:
        self.post_message(self.Chosen(self._view))


class Page(VerticalScroll):
    """Text that is drawn again for every width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home,g", "scroll_home", show=False),
        Binding("end,G", "scroll_end", show=False),
    ]

    def compose(self) -> ComposeResult:
        yield Static(classes="text")

    def show(self, draw: Draw, *, plain: bool) -> None:
        """Show what `draw` returns. Nothing is shown before the page is mounted: news may come earlier."""
        for text in self.query(Static):
            canvas = Canvas(width=max(20, self.size.width - MARGIN), height=self.size.height, plain=plain)
            text.update(as_text(draw(canvas)))


class Rows(DataTable[Text]):
    """A table of topics or groups; the cursor stays on its name over refreshes."""

    def __init__(self, **words: str) -> None:
        super().__init__(**words, cursor_type="row", cell_padding=0)  # type: ignore[arg-type]
        self._layout: tuple[object, ...] = ()

    @property
    def chosen(self) -> str | None:
        """Return the name under the cursor."""
        if not self.is_valid_row_index(self.cursor_row):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, shown: Shown, now_ms: int, *, plain: bool) -> None:
        columns = fitting(shown.columns, max(20, self.size.width - MARGIN))
        cells = {
            row.name: [
                Text(
                    fitted(column.text(row, now_ms), width, is_right=column.is_right, plain=plain)
                    + " " * (COLUMN_GAP if number < len(columns) - 1 else 0),
                    style=column.style(row),
                    no_wrap=True,
                )
                for number, (column, width) in enumerate(columns)
            ]
            for row in shown.rows
        }
        layout = (*((column.title, width) for column, width in columns), *cells)
        if layout == self._layout:
            for name, row in cells.items():
                for (column, _), cell in zip(columns, row, strict=True):
                    if self.get_cell(name, column.title) != cell:
                        self.update_cell(name, column.title, cell)
            return
        self._layout = layout
        self._rebuild(columns, cells, plain=plain)

    def _rebuild(self, columns: Sequence[tuple], cells: dict[str, list[Text]], *, plain: bool) -> None:  # type: ignore[type-arg]
        chosen, scrolled = self.chosen, self.scroll_y
        self.clear(columns=True)
        for number, (column, width) in enumerate(columns):
            gap = COLUMN_GAP if number < len(columns) - 1 else 0
            title = fitted(column.title, width, is_right=column.is_right, plain=plain)
            self.add_column(Text(title + " " * gap), key=column.title, width=width + gap)
        for name, row in cells.items():
            self.add_row(*row, key=name)
        if chosen is not None and chosen in cells:
            self.move_cursor(row=self.get_row_index(chosen), scroll=False)
            self.scroll_to(y=scrolled, animate=False)


class Details(ModalScreen[None]):
    """The details of one topic or group. `current` returns its current value; None if it is not listed any more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,left", "leave", "back"),
    ]

    def __init__(self, title: str, first: Topic | Group, current: Callable[[], Topic | Group | None],
        draw: Callable[[Topic | Group, Canvas], list[Text]], *, plain: bool) -> None:  # fmt: skip
        super().__init__()
        self._title = title
        self._last = first
        self._current = current
        self._draw = draw
        self._plain = plain

    def compose(self) -> ComposeResult:
        yield Page(id="details")

    def on_mount(self) -> None:
        self.query_one(Page).border_title = self._title.replace("[", r"\[")
        self.query_one(Page).border_subtitle = "esc goes back"
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        found = self._current()
        self._last = found or self._last

        def draw(canvas: Canvas) -> list[Text]:
            lines = self._draw(self._last, canvas)
            return lines if found else [styled(("not listed any more: this data is OLD", "bold yellow")), *lines]

        for page in self.query(Page):  # there is none before the screen is mounted, as in `Page.show`
            page.show(draw, plain=self._plain)

    def action_leave(self) -> None:
        self.dismiss()


class Help(ModalScreen[None]):
    """The help: the meaning of keys, words and signs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,q", "leave", "back"),
    ]

    def __init__(self, lines: Callable[[Canvas], list[Text]], *, plain: bool) -> None:
        super().__init__()
        self._lines = lines
        self._plain = plain

    def compose(self) -> ComposeResult:
        yield Page(id="help")

    def on_mount(self) -> None:
        self.query_one(Page).border_title = "quarry top"
        self.query_one(Page).border_subtitle = "esc goes back"
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        for page in self.query(Page):
            page.show(self._lines, plain=self._plain)

    def action_leave(self) -> None:
        self.dismiss()
