"""Measures the memory that an object keeps alive, for tests that nothing grows with finished work."""

from __future__ import annotations

import gc
from collections import Counter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

_NOT_OURS: Final = (type, ModuleType, BuiltinFunctionType, CodeType, FrameType)


def kept_alive(*roots: object) -> Counter[str]:
    """How many objects can be reached, by the name of their type. Modules and classes are not entered."""
    gc.collect()
    seen: dict[int, object] = {}
    pending: list[Any] = list(roots)
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, _NOT_OURS):
            continue
        seen[id(each)] = each
        if isinstance(each, FunctionType):  # not its module's globals
            pending += [*(each.__closure__ or ()), *(each.__defaults__ or ())]
        else:
            pending += gc.get_referents(each)
    return Counter(type(each).__qualname__ for each in seen.values())


def grown(before: Counter[str], after: Counter[str], *, more_than: int) -> dict[str, int]:
    """The types of which there are more now than `more_than`."""
    return {name: count - before[name] for name, count in after.items() if count - before[name] > more_than}
