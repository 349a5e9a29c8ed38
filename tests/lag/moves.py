"""Moves of a state machine that are made as often as they are to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import hypothesis.strategies as st

Method = TypeVar("Method", bound=Callable[..., None])
often: Final[list[str]] = []
"""The names of the moves, each as many times as it counts."""
terms_of: Final[dict[str, st.SearchStrategy[dict[str, Any]]]] = {}


def move(times: int, /, **terms: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """A move of the machine, to be made so many times as often as others.

    Rules of Hypothesis are switched off at random, and most pairs of two dozen never meet.
    """

    def enter(method: Method) -> Method:
        terms_of[method.__name__] = st.fixed_dictionaries(terms)
        often.extend([method.__name__] * times)
        return method

    return enter
