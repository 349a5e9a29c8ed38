"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 20, 50)
"""How many more objects there must be, of each age, before garbage among them is looked for. With Python's own numbers
(700, 10, 10) a broker whose caches turn over looks through all of them several times a second, tens of milliseconds
each time, and finds nothing: what it makes goes when it is no longer referred to.
"""


def look_for_garbage_seldom() -> None:
    """What is there by now is taken for something that stays, and not looked at any more.

    To be called when the modules are loaded, since reading a log back makes many objects, and when the store is open.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
