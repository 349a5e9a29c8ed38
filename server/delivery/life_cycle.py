"""The life of a message in a group: the states, and which events lead from one to the next.

| state     | event        | next      | what it means |
|-----------|--------------|-----------|---------------|
| waiting   | handed out   | hidden    | for the first time |
| waiting   | passed over  | done      | the group's filter does not match it |
| hidden    | acknowledged | done      | |
| hidden    | changed      | hidden    | for another time, under a new handle; a time of zero is over at once |
| hidden    | renewed      | hidden    | the broker keeps it for a client that is alive, or until its copy is appended |
| hidden    | given back   | hidden    | its client is gone, or its answer was interrupted: a second more, or at once |
| hidden    | forwarded    | hidden    | on its way to the dead letters, as the client asked |
| hidden    | buried       | done      | it is among the dead letters |
| hidden    | time is up   | ready     | |
| ready     | handed out   | hidden    | redelivered |
| ready     | forwarded    | hidden    | it was delivered as often as the group allows |
| ready     | gone         | done      | its record expired, or was given up |

Waiting and done messages have no row: the group's next offset tells them apart. Hidden and ready are told apart by the
clock, and by whether the broker would renew the lease. A message that was found hidden counts as hidden until the
operation that found it is over. When a group's offset is reset, all states in the queue are deleted.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """The state of a message for one group."""

    WAITING = "waiting"
    HIDDEN = "hidden"
    READY = "ready"
    DONE = "done"


class Event(Enum):
    """An event in the life of a message."""

    HANDED_OUT = "handed out"
    PASSED_OVER = "passed over"
    ACKNOWLEDGED = "acknowledged"
    CHANGED = "changed"
    RENEWED = "renewed"
    GIVEN_BACK = "given back"
    FORWARDED = "forwarded"
    BURIED = "buried"
    TIME_UP = "time is up"
    GONE = "gone"


NEXT: Final = {
    (State.WAITING, Event.HANDED_OUT): State.HIDDEN,
    (State.WAITING, Event.PASSED_OVER): State.DONE,
    (State.HIDDEN, Event.ACKNOWLEDGED): State.DONE,
    (State.HIDDEN, Event.CHANGED): State.HIDDEN,
    (State.HIDDEN, Event.RENEWED): State.HIDDEN,
    (State.HIDDEN, Event.GIVEN_BACK): State.HIDDEN,
    (State.HIDDEN, Event.FORWARDED): State.HIDDEN,
    (State.HIDDEN, Event.BURIED): State.DONE,
    (State.HIDDEN, Event.TIME_UP): State.READY,
    (State.READY, Event.HANDED_OUT): State.HIDDEN,
    (State.READY, Event.FORWARDED): State.HIDDEN,
    (State.READY, Event.GONE): State.DONE,
}
"""The next state for a state and an event. Other pairs cannot occur."""
