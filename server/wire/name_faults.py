"""What is wrong with a name, in the words of RocketMQ: programs that were written for it look for these."""

from __future__ import annotations

from typing import Final

from server.java_text import is_blank
from store.metadata.names import ALPHABET, GROUP_NAME_MAX, TOPIC_NAME_MAX, is_in_alphabet

NAME_SHOWN_MAX: Final = 60


def topic_fault(name: str) -> str:
    """Of a name that no client may use for a topic."""
    if is_blank(name):
        return "The specified topic is blank"
    if len(name) > TOPIC_NAME_MAX:
        return f"The specified topic is longer than topic max length {TOPIC_NAME_MAX}."
    if not is_in_alphabet(name):
        return f"The specified topic[{_shown(name)}] contains illegal characters, allowing only {ALPHABET}"
    return "cannot access system topic"


def group_fault(name: str) -> str:
    """Of a name that no client may use for a consumer group."""
    if is_blank(name):
        return "the specified group is blank"
    if len(name) > GROUP_NAME_MAX:
        return f"the specified group[{_shown(name)}] is longer than group max length: {GROUP_NAME_MAX}."
    if not is_in_alphabet(name):
        return f"the specified group[{_shown(name)}] contains illegal characters, allowing only {ALPHABET}"
    return "cannot use system consumer group"


def _shown(name: str) -> str:
    """Cut, and without characters that do something to a terminal."""
    return "".join(each if each.isprintable() else "\ufffd" for each in name[:NAME_SHOWN_MAX])
