"""The states of a connection, and the transitions between them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """The state of a connection. `TRANSITIONS` lists the states that may follow."""

    NEW = "awaits the preface"
    GREETED = "awaits the first SETTINGS"
    OPEN = "open"
    DRAINING = "takes no new calls"
    OVER = "says nothing more"


TRANSITIONS: Final = {
    State.NEW: {State.GREETED, State.OVER},
    State.GREETED: {State.OPEN, State.DRAINING, State.OVER},
    State.OPEN: {State.DRAINING, State.OVER},
    State.DRAINING: {State.OVER},
    State.OVER: set[State](),
}
