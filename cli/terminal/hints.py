"""Suggests what to do after an error: the second line of an error message.

Rules match the line that says what went wrong, whether the broker, a store or the command said it. They are all in this
module, and tests check each against the real error (tests/cli/test_hints.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from quarry_mq.cli.context_file import context_names

NEAR_MAX: Final = 3
LITE: Final = "lite topic of "
Names = Callable[[str], Sequence[str]]
"""Returns the existing names of a kind; none if no broker can be asked.

Kinds are `topic`, `group`, `user`, `setting`, `job` (the newest first), `member`, and `LITE` with the name of a topic.
"""

_Advice = Callable[[re.Match[str], Names], str | None]
_TLS_WORDS: Final = ("ssl", "tls", "certificate", "handshake", "socket closed", "reset by peer")
"""Words in gRPC's text about a connection that was made and ended at once."""


class Rule(NamedTuple):
    """A rule: `advise` makes the hint for a line in which `pattern` is found; None: there is no hint."""

    pattern: re.Pattern[str]
    advise: _Advice


def no_names(_kind: str) -> Sequence[str]:
    """Return no names: for use where no broker can be asked."""
    return ()


def hint(line: str, names: Names = no_names) -> str | None:
    """Return what to do about an error; None if the line says everything."""
    for rule in RULES:
        found = rule.pattern.search(line)
        if found is not None:
            return rule.advise(found, names)
    return None


def near(name: str, names: Sequence[str]) -> list[str]:
    """Return the names that may have been meant, the nearest first."""
    return get_close_matches(name, names, n=NEAR_MAX, cutoff=0.7)


def _no_answer(found: re.Match[str], _names: Names) -> str:
    if any(word in found["why"].lower() for word in _TLS_WORDS):
        return (
            "the other side closes the connection: only one side uses TLS, or a certificate is not trusted: "
            "`quarry context add` has --tls and --tls-ca"
        )
    return f"start a broker with `quarry serve --store DIR`, or name one with --admin, --endpoint or {_context()}"


def _context() -> str:
    known = context_names()
    return f"--context ({', '.join(known)})" if known else "--context"


def _no_topic(found: re.Match[str], names: Names) -> str | None:
    name = found["name"]
    if name.startswith("%"):
        return None  # the broker's own topics cannot be created
    return _meant(name, names("topic")) or f"`quarry topic create {shlex.quote(name)}` creates it"


def _no_group(found: re.Match[str], names: Names) -> str:
    name = found["name"]
    return _meant(name, names("group")) or f"`quarry group create {shlex.quote(name)}` creates it"


def _no_user(found: re.Match[str], names: Names) -> str:
    name = found["name"]
    return _meant(name, names("user")) or f"`quarry user create {shlex.quote(name)}` creates it"


def _no_setting(found: re.Match[str], names: Names) -> str:
    return _meant(found["name"], names("setting")) or "`quarry settings list` lists the settings that can be changed"


def _no_lite_topic(found: re.Match[str], names: Names) -> str:
    parent = found["parent"]
    return _meant(found["name"], names(LITE + parent)) or f"`quarry lite list {shlex.quote(parent)}` lists all"


def _no_job(found: re.Match[str], names: Names) -> str:
    known = names("job")
    newest = f"the newest is {known[0]}; " if known else ""
    return _meant(found["name"], known) or f"{newest}`quarry job list` lists all"


def _no_member(found: re.Match[str], names: Names) -> str:
    return _meant(found["name"], names("member")) or "`quarry cluster members` lists all"


def _meant(name: str, names: Sequence[str]) -> str | None:
    found = near(name, names)
    return f"did you mean {', '.join(found)}?" if found else None


def _order_would_break(found: re.Match[str], _names: Names) -> str:
    name = shlex.quote(found["name"])
    return (
        f"`quarry topic update {name} --permission read`, wait until the groups have read everything, then change the "
        "queues and the permission; or use --break-order"
    )


def _not_signed(_found: re.Match[str], _names: Names) -> str:
    known = context_names()
    if known:
        return f"choose a context with a user: quarry --context NAME … ({', '.join(known)})"
    return (
        "add a context with a user: quarry context add NAME --admin HOST:PORT --user USER --secret-file FILE, then "
        "--context NAME"
    )


def _not_known(_found: re.Match[str], _names: Names) -> str:
    return "`quarry context show` shows the user and the secret file; the user may be disabled"


def _may_not(found: re.Match[str], _names: Names) -> str:
    kind, name = found["kind"], found["name"]
    resource = "cluster:*" if kind == "cluster" else f"{kind}:{name}"
    return f"an administrator can allow it: quarry acl allow {found['user']} {shlex.quote(resource)} {found['action']}"


def _super_users(found: re.Match[str], _names: Names) -> str:
    return f"an administrator can make the user one: quarry user update {found['user']} --kind super"


def _wrong_type(found: re.Match[str], _names: Names) -> str:
    return f"use a topic that takes such messages: quarry topic create NAME --type {found['type'].lower()}"


def _says(text: str) -> _Advice:
    return lambda _found, _names: text


RULES: Final = tuple(
    Rule(re.compile(pattern), advise)
    for pattern, advise in (
        (r"no answer from a broker \((?P<why>.*)\)$", _no_answer),
        (
            r"\bdeadline exceeded\b",
            _says("the broker is busy, or the network drops calls: run `quarry doctor` on its machine"),
        ),
        (r"\bno topic (?P<name>\S+)$", _no_topic),
        (r"\btopic (?P<name>\S+) does not exist$", _no_topic),
        (r"\bno group (?P<name>\S+)$", _no_group),
        (r"\bconsumer group (?P<name>\S+) does not exist$", _no_group),
        (r"\btopic (?P<name>\S+?):? .*\bwould lose (?:its|their) order\b", _order_would_break),
        (r"\bno user (?P<name>\S+)$", _no_user),
        (r"(?P<name>\S+): no setting that can be changed", _no_setting),
        (r"\btopic (?P<parent>\S+) has no lite topic (?P<name>\S+)$", _no_lite_topic),
        (r"\bthere is no job (?P<name>\S+)$", _no_job),
        (r"\bno member '(?P<name>[^']+)'", _no_member),
        (r"\bthe call is not signed\b", _not_signed),
        (r"\bno enabled user has this name and this secret\b", _not_known),
        (r"\bbehind the broker's clock\b|\bahead of the broker's clock\b", _says("set the clock of this machine")),
        (r"\buser (?P<user>\S+) may not do this: only super users may", _super_users),
        (r"\buser (?P<user>\S+) may not (?P<action>\w+) on (?P<kind>topic|group|cluster) (?P<name>\S+)", _may_not),
        (r"\bis of type \w+ and takes no (?P<type>\w+) messages\b", _wrong_type),
        (
            r"\banother broker holds this store\b",
            _says("stop that broker first; `quarry backup --admin` copies a live one"),
        ),
        (
            r"\ba broker is running on this store\b",
            _says("`quarry verification begin` verifies the store of a live broker, `quarry backup --admin` copies it"),
        ),
        (r"which in phase \w+ does not hold everything$", _says("`quarry migration status` shows the next step")),
        (r": no such directory$", _says("a store is the directory that contains commitlog/")),
        (r"contexts\.toml: No such file", _says("`quarry context add NAME --admin HOST:PORT` creates the first one")),
    )
)
