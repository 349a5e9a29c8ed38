"""The module decides what recovery does about the end of the log that it found, by a table.

    below    before the offset below which everything was durable: something that was promised is missing
    at       exactly at that offset: all that was promised is whole
    above    after that offset

| the log ends…   | and last stop was | nothing more | torn   | corrupt |
|-----------------|-------------------|--------------|--------|---------|
| below           | clean or not      | refuse       | refuse | refuse  |
| at              | clean or not      | end          | end    | end     |
| above           | unclean           | end          | end    | end     |
| above           | clean             | end          | refuse | refuse  |

- `end`: the log ends there. Bytes that follow are cut off and kept in `commitlog/broken/`.
- `refuse`: nothing is changed, the store does not open, an operator has to act.

About the last row: a clean stop flushes the log as a whole. Records after the known durable offset were written by
another broker (RocketMQ) later, so a broken one among them was whole once. After the last record a clean stop leaves
zeros: other bytes exactly there are part of no record.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Corrupt, EndOfData, Torn


class Ending(Enum):
    """The ending says what lies where the log ends."""

    NOTHING_MORE = "nothing more"  # zeros, or the end of its last segment
    TORN = "torn"
    CORRUPT = "corrupt"


class Place(Enum):
    """The place says where the log ends relative to the offset below which everything was durable."""

    BELOW = "below"
    AT = "at"
    ABOVE = "above"


class Stop(Enum):
    """The stop says how the last broker on the store ended."""

    CLEAN = "clean"
    UNCLEAN = "unclean"


class Verdict(Enum):
    END = "end"
    REFUSE = "refuse"


VERDICTS: Final = {
    (Place.BELOW, Stop.CLEAN, Ending.NOTHING_MORE): Verdict.REFUSE,
    (Place.BELOW, Stop.CLEAN, Ending.TORN): Verdict.REFUSE,
    (Place.BELOW, Stop.CLEAN, Ending.CORRUPT): Verdict.REFUSE,
    (Place.BELOW, Stop.UNCLEAN, Ending.NOTHING_MORE): Verdict.REFUSE,
    (Place.BELOW, Stop.UNCLEAN, Ending.TORN): Verdict.REFUSE,
    (Place.BELOW, Stop.UNCLEAN, Ending.CORRUPT): Verdict.REFUSE,
    (Place.AT, Stop.CLEAN, Ending.NOTHING_MORE): Verdict.END,
    (Place.AT, Stop.CLEAN, Ending.TORN): Verdict.END,
    (Place.AT, Stop.CLEAN, Ending.CORRUPT): Verdict.END,
    (Place.AT, Stop.UNCLEAN, Ending.NOTHING_MORE): Verdict.END,
    (Place.AT, Stop.UNCLEAN, Ending.TORN): Verdict.END,
    (Place.AT, Stop.UNCLEAN, Ending.CORRUPT): Verdict.END,
    (Place.ABOVE, Stop.CLEAN, Ending.NOTHING_MORE): Verdict.END,
    (Place.ABOVE, Stop.CLEAN, Ending.TORN): Verdict.REFUSE,
    (Place.ABOVE, Stop.CLEAN, Ending.CORRUPT): Verdict.REFUSE,
    (Place.ABOVE, Stop.UNCLEAN, Ending.NOTHING_MORE): Verdict.END,
    (Place.ABOVE, Stop.UNCLEAN, Ending.TORN): Verdict.END,
    (Place.ABOVE, Stop.UNCLEAN, Ending.CORRUPT): Verdict.END,
}


def ending_of(stopped_by: EndOfData | Torn | Corrupt | None) -> Ending:
    match stopped_by:
        case Torn():
            return Ending.TORN
        case Corrupt():
            return Ending.CORRUPT
        case EndOfData() | None:
            return Ending.NOTHING_MORE


def place_of(end: PhysicalOffset, durable_up_to: PhysicalOffset) -> Place:
    if end < durable_up_to:
        return Place.BELOW
    return Place.AT if end == durable_up_to else Place.ABOVE


def judge(
    end: PhysicalOffset,
    stopped_by: EndOfData | Torn | Corrupt | None,
    *,
    durable_up_to: PhysicalOffset,
    stop: Stop,
) -> Verdict:
    """Decide what to do with a log that ends at `end`."""
    return VERDICTS[place_of(end, durable_up_to), stop, ending_of(stopped_by)]
