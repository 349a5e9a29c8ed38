"""Where a connection stands, and where it may go from there."""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Where a connection stands. `TRANSITIONS` says where it may go."""

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
