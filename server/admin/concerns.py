"""The one list of what needs an operator's attention. Console, `overview`, `top` and `doctor` show it as it is.

The list is made from what other parts keep at hand: a call costs the same at any number of queues and groups. What has
to be searched for is found by sweeps in the background (`server.lag.stuck_groups`, `UnsentDeadLetters`), which name the
worst of each kind and count the rest.

Each kind of concern is in docs/concerns.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from heapq import nlargest
from shlex import quote as quoted
from typing import Final, NamedTuple
from urllib.parse import quote

import structlog

from quarry_mq.server.admin.dead_letter_box import DeadLetterBox, Unsent
from quarry_mq.server.admin.sources import AdminAccess, Sources
from quarry_mq.server.delivery import GIVE_UP_COMMAND
from quarry_mq.server.lag.stuck_groups import SHOWN, Stuck, StuckGroup
from quarry_mq.server.observability.error_reporter import Damage
from quarry_mq.server.process.certificates import WARN_BEFORE_S
from quarry_mq.server.process.host_commands import HostCommands
from quarry_mq.server.replicas.process import WatchedCopies
from quarry_mq.server.security.denied_callers import Denial, DeniedCaller
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.errors import MessageGivenUp, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.layout.paths import StorePart, StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.security.model import SECRETS_MAX, USER_NAME
from quarry_mq.store.verify import check_readable

DISPATCH_LAG_BYTES: Final = 64 << 20
"""Bytes of dispatch lag that flushes and batches do not cause on a disk that keeps up."""
LOOP_LATE_S: Final = 1.0
"""A third of the time that clients wait for a send."""
CLOCK_SLACK_MS: Final = 5_000
DAY_S: Final = 86_400
MEMBER_GONE_S: Final = 3_600.0
"""Seconds after which a member may have been taken away for good: a start takes less."""
COPY_AWAY_S: Final = 60.0
"""Seconds that a copy may be away: a restart takes less."""
COPY_LAG_S: Final = 10.0
LOGGED_AFTER_S: Final = 300.0
"""Least time between two log lines about the begin of a kind of concern."""

log = structlog.get_logger(__name__)


class Severity(Enum):
    """Severity says how bad a concern is: with a `fault` something is refused or lost, a `warning` leads there."""

    FAULT = "fault"
    WARNING = "warning"


class Concern(NamedTuple):
    """A concern is one finding. `kind` never changes its meaning; `subject` tells concerns of one kind apart.

    `page` is the address of the console's page behind `#/`. `command` cures it; where only a person can do that, it
    shows what to look at. `since_ms` is the wall time; None until the list has been kept for a moment.
    """

    kind: str
    severity: Severity
    text: str
    page: str
    command: str
    since_ms: int | None = None
    subject: str = ""


class Concerns:
    """Makes the list. Lives on the event loop's thread; `counts` may be read on any."""

    def __init__(
        self,
        sources: Sources,
        unsent: UnsentDeadLetters,
        loop_late_s: Callable[[], float | None],
        host_commands: HostCommands,
        paths: StorePaths,
        *,
        copies: WatchedCopies | None = None,
    ) -> None:
        """`loop_late_s` returns how late the event loop was in the last ten seconds. `copies` are those of the store on
        other machines; None if it has none.
        """
        self._copies = copies
        self._host_commands = host_commands
        self._paths = paths
        self._sources = sources
        self._unsent = unsent
        self._loop_late_s = loop_late_s
        self._clock = sources.components.clock
        self._since_ms: dict[tuple[str, str], int] = {}
        self._logged: set[str] = set()
        """The kinds that were logged and have not ended since."""
        self._logged_s: dict[str, float] = {}
        self.counts: Mapping[tuple[str, str], int] = {}
        """The number of concerns by kind and severity, as of the last sweep."""

    def now(self) -> list[Concern]:
        """Return all concerns, faults first; none if all is well."""
        now_ms, before = self._clock.wall_ms(), self._since_ms
        found = sorted(self._found(), key=lambda each: each.severity is Severity.WARNING)
        self._since_ms = {}
        told = []
        for each in found:
            key = each.kind, each.subject
            since_ms = self._since_ms[key] = before.get(key, now_ms) if each.since_ms is None else each.since_ms
            told.append(each._replace(text=without_places(each.text), since_ms=since_ms))
        return told

    def steps(self) -> Iterator[None]:
        """Drop damage that is gone, note since when each concern is there, count them, and log their kinds."""
        yield from self._drop_damage()
        yield
        found = self.now()
        self.counts = Counter((each.kind, each.severity.value) for each in found)
        self._log(found)

    def _drop_damage(self) -> Iterator[None]:
        """Read the damaged records once more: they may have expired, or were on a disk that gave other bytes."""
        its = self._sources.components
        for each in its.edge.error_reporter.damage():
            if each.record_at is None:
                continue
            yield
            with suppress(StoreDamaged, OSError):
                with suppress(OffsetOutOfRange, MessageGivenUp):
                    check_readable(its.store.segments, PhysicalOffset(each.record_at))
                    its.store.messages.record_at(PhysicalOffset(each.record_at))
                its.edge.error_reporter.drop(each)

    def _log(self, found: Sequence[Concern]) -> None:
        """Log the first concern of a kind, and the end of the kind. A kind that comes and goes gets few lines."""
        now_s, first = self._clock.monotonic_s(), {each.kind: each for each in reversed(found)}
        for kind in self._logged - first.keys():
            self._logged.remove(kind)
            log.info("a concern has ended", kind=kind)
        for kind, each in first.items():
            logged_s = self._logged_s.get(kind)
            if kind not in self._logged and (logged_s is None or now_s - logged_s >= LOGGED_AFTER_S):
                self._logged.add(kind)
                self._logged_s[kind] = now_s
                severity = each.severity.value
                log.warning("a concern", kind=kind, severity=severity, text=each.text, command=each.command)

    def _found(self) -> Iterator[Concern]:
        sources, around = self._sources, self._host_commands
        yield from _health(sources, around)
        yield from _damage(sources, self._paths)
        yield from _errors(sources, around)
        yield from _clock(sources)
        yield from _disk(sources)
        yield from _access(sources)
        yield from _denied(sources)
        yield from _certificate(sources)
        yield from _groups(sources)
        yield from self._unsent.concerns()
        yield from _members(sources)
        yield from self._replicas()
        yield from _process(sources, around, self._loop_late_s())

    def _replicas(self) -> Iterator[Concern]:
        if self._copies is None:
            return
        command = "quarry replica list"
        now_ms = self._clock.wall_ms()
        for each, silent_s in self._copies.silent():
            name = each.name
            if silent_s > COPY_AWAY_S:
                text = (
                    f"copy {name} of the store is not connected: what is stored meanwhile is on this machine alone. "
                    f"Look at the log of {name}, and whether it reaches network.replication of this machine"
                )
                since_ms = now_ms - int(1000 * silent_s)
                yield Concern("replica-away", Severity.WARNING, text, "", command, since_ms, name)
            elif each.is_connected and each.lag_s > COPY_LAG_S:
                state = "is being seeded, and" if each.is_seeding else "is"
                text = (
                    f"copy {name} of the store {state} {_span(int(1000 * each.lag_s))}, {each.missing} "
                    "behind: they are lost if this machine is lost now"
                )
                yield Concern("replica-behind", Severity.WARNING, text, "", command, subject=name)


def _health(sources: Sources, around: HostCommands) -> Iterator[Concern]:
    health = sources.health.look()
    if health.reason:
        text = f"poisoned: {health.reason}; only a restart helps"
        yield Concern("poisoned", Severity.FAULT, text, "", around.restart)
    if health.sends_refused:
        text = f"sends are refused: {health.sends_refused}"
        yield Concern("sends-refused", Severity.FAULT, text, "storage", "quarry storage")
    lag_bytes = sources.dispatch_lag_bytes
    if lag_bytes > DISPATCH_LAG_BYTES:
        text = f"dispatch is {lag_bytes} bytes behind: consumers cannot see these messages yet"
        yield Concern("dispatch-behind", Severity.WARNING, text, "", "quarry stats")


def _damage(sources: Sources, paths: StorePaths) -> Iterator[Concern]:
    its = sources.components
    now_s, now_ms = its.clock.monotonic_s(), its.clock.wall_ms()
    blocked = [
        Concern(
            "queue-blocked",
            Severity.FAULT,
            f"group {each.group} cannot go on in queue {each.queue.number} of topic {each.queue.topic}: the record of "
            f"its message {each.offset} is damaged. The command goes on behind the message, which is then lost for the "
            "group",
            _page("groups", each.group),
            each.command,
            now_ms - int(1000 * (now_s - each.at_s)),
            f"{each.group}/{each.queue.topic}/{each.queue.number}",
        )
        for each in its.delivery.blocked_by_damage()
    ]
    yield from _first(blocked, "queues in which damaged records hold up groups", "groups", "quarry group top")
    met = [
        Concern(
            "damage-met",
            Severity.FAULT,
            f"damaged data was met: {each.text}. {repair.advice}",
            "storage",
            repair.command,
            now_ms - int(1000 * (now_s - each.first_s)),
            each.text,
        )
        for each in its.edge.error_reporter.damage()
        for repair in [_repair(each, paths)]
    ]
    yield from _first(met, "damaged places: see the broker's log", "storage", "quarry verification begin --wait")


class _Repair(NamedTuple):
    advice: str
    command: str


_RECORD: Final = _Repair(
    "Groups go on behind a damaged message with `quarry group reset-offset`. The command, on the stopped broker, shows "
    "what it takes to give the record up; otherwise it leaves with its segment",
    GIVE_UP_COMMAND,
)
_QUEUES: Final = _Repair(
    "The command, on the stopped broker, rebuilds the queues from the log", "quarry recover STORE --rebuild-queues"
)
_PENDING: Final = _Repair(
    "Move the directory away while the broker is stopped: the next start rebuilds it from the log",
    "mv STORE/held_rocksdb STORE/held_rocksdb.damaged",
)
_OTHER: Final = _Repair(
    "The command compares everything that the broker keeps; what cannot be rebuilt comes from a backup",
    "quarry verification begin --wait",
)


_BY_PART: Final[Mapping[StorePart, _Repair]] = {StorePart.QUEUES: _QUEUES, StorePart.PENDING_MESSAGES: _PENDING}


def _repair(damage: Damage, paths: StorePaths) -> _Repair:
    if damage.record_at is not None:
        return _RECORD
    return _OTHER if damage.path is None else _BY_PART.get(paths.part_of(damage.path), _OTHER)


def _errors(sources: Sources, around: HostCommands) -> Iterator[Concern]:
    command = around.log
    met = [
        Concern("error-met", Severity.FAULT, text, "", command, subject=text)
        for text in sources.components.edge.error_reporter.recent()
    ]
    yield from _first(met, "errors within five minutes: see the broker's log", "", command)


def _first(found: Sequence[Concern], rest: str, page: str, command: str) -> Iterator[Concern]:
    """Yield the first concerns of a kind, and one for all others."""
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield _rest(found[0], len(found) - SHOWN, rest, page, command)


def _rest(like: Concern, count: int, rest: str, page: str, command: str) -> Concern:
    return Concern(like.kind, like.severity, f"{count} more {rest}", page, command, subject="the rest")


def _clock(sources: Sources) -> Iterator[Concern]:
    its = sources.components
    ahead_ms = its.store.messages.last_stored_ms - its.clock.wall_ms()
    if ahead_ms > CLOCK_SLACK_MS:
        text = (
            f"the clock is {_span(ahead_ms)} behind the last message of the log: it was set back, or was ahead. "
            "Until it has caught up, new messages get the store time of that message, and expire later"
        )
        yield Concern("clock-behind-log", Severity.FAULT, text, "storage", "timedatectl set-ntp true")


def _disk(sources: Sources) -> Iterator[Concern]:
    retention = sources.maintenance.retention
    space, force_percent = retention.log_space, retention.force_percent
    if space is not None and space.used_percent >= force_percent:
        text = (
            f"the disk is {space.used_percent} % full: from {force_percent} % on, segments are deleted before their "
            "retention time"
        )
        yield Concern("disk", Severity.WARNING, text, "storage", "quarry settings set expiry.retention_hours HOURS")
    for step, reason in retention.complaints.items():
        text = f"{step} of segments is held up: {reason}"
        yield Concern("expiry-held-up", Severity.WARNING, text, "storage", "quarry storage", subject=step)
    problem = sources.maintenance.verification.sweeps.problem
    if problem is not None:
        text = f"the check of the log is held up: {problem}"
        yield Concern("log-check-held-up", Severity.WARNING, text, "jobs", "quarry verification list")
    problem = sources.maintenance.migration.problem
    if problem is not None:
        text = f"migration is held up: {problem}"
        yield Concern("migration-held-up", Severity.WARNING, text, "migration", "quarry migration status")


def _access(sources: Sources) -> Iterator[Concern]:
    for name, address in sources.access.open_to_everybody.items():
        text = f"network.{name} = {address} needs no authentication: anybody who can reach it can administer the broker"
        command = "quarry user bootstrap STORE NAME"
        yield Concern("admin-open", Severity.WARNING, text, "users", command, subject=name)
    if sources.access.lacks_super():
        text = (
            "users are asked for and there is no super user: nobody can create users and rules. Stop the broker first"
        )
        yield Concern("no-super-user", Severity.WARNING, text, "users", "quarry user bootstrap STORE NAME")


def _denied(sources: Sources) -> Iterator[Concern]:
    its = sources.components
    now_s, now_ms = its.clock.monotonic_s(), its.clock.wall_ms()
    found = [
        Concern(
            "calls-denied",
            Severity.WARNING,
            f"{each.calls} calls from {each.address} to the {each.port} port were denied. {text}",
            "users",
            command,
            now_ms - int(1000 * (now_s - each.first_s)),
            f"{each.denial.value}/{each.port}/{each.address}/{each.user}",
        )
        for each in sources.access.denied()
        for text, command in [_remedy(each, sources.access)]
    ]
    yield from _first(found, "callers whose calls are denied: see the broker's log", "users", "quarry user list")


def _remedy(caller: DeniedCaller, access: AdminAccess) -> tuple[str, str]:
    """Return why the calls are denied and what helps, and the command."""
    user = caller.user if USER_NAME.fullmatch(caller.user) else ""
    match caller.denial:
        case Denial.NO_CREDENTIALS:
            return "They name no user. Give the client the name and secret of a user", "quarry user list"
        case Denial.WRONG_CLOCK:
            return f"Run the command on the client's machine: {caller.reason}", "timedatectl set-ntp true"
        case Denial.NO_RIGHT:
            text = f"{caller.reason}. If it is meant to be allowed, add a rule with `quarry acl allow`"
            return text, f"quarry acl show {user}" if user else "quarry user list"
        case Denial.OTHER:
            return caller.reason, f"quarry user show {user}" if user else "quarry user list"
    known = access.user(user) if user else None
    if known is None:
        named = f"no user {user}" if user else "no user with the name that they give"
        return f"There is {named}. Give the client the name and secret of a user", "quarry user list"
    if not known.enabled:
        return f"User {user} is disabled", f"quarry user show {user}"
    text = f"Their secret is not that of user {user}. Give the client the right one"
    if len(known.secrets) < SECRETS_MAX:
        return f"{text}; if it is lost, the command makes a second one", f"quarry user add-secret {user}"
    return f"{text}; it has {SECRETS_MAX} secrets, so remove one of them before you add another", (
        f"quarry user show {user}"
    )


def _certificate(sources: Sources) -> Iterator[Concern]:
    refusal = sources.certificates.refusal
    if refusal:
        text = (
            f"the new TLS files are not used: {refusal}. The old ones stay in use, but a restart would fail. Right "
            "files are used at once"
        )
        yield Concern("tls-files-refused", Severity.WARNING, text, "settings", "quarry doctor")
    expires_s = sources.certificates.expires_s
    if expires_s is None:
        return
    left_s = expires_s - sources.components.clock.wall_ms() / 1000
    advice = "A new file in its place is used at once"
    if left_s <= 0:
        text = f"the TLS certificate has expired. {advice}"
        yield Concern("certificate", Severity.FAULT, text, "settings", "quarry doctor", int(expires_s * 1000))
    elif left_s < WARN_BEFORE_S:
        text = f"the TLS certificate expires in {left_s / DAY_S:.0f} days. {advice}"
        since_ms = int((expires_s - WARN_BEFORE_S) * 1000)
        yield Concern("certificate", Severity.WARNING, text, "settings", "quarry doctor", since_ms)


def _groups(sources: Sources) -> Iterator[Concern]:
    now_ms = sources.components.clock.wall_ms()
    for summary in sources.background.stuck.summaries.values():
        found = [_stuck(each, now_ms) for each in summary.shown]
        yield from found
        if summary.groups > len(found):
            left = summary.groups - len(found)
            yield _rest(found[0], left, "groups of the same kind", "groups", "quarry group top")


def _stuck(each: StuckGroup, now_ms: int) -> Concern:
    lag = each.lag
    waiting = _messages(lag.lag, "waits", "wait")
    oldest, since = f"the oldest for {_span(lag.lag_ms or 0)}", _span(now_ms - each.since_ms)
    command = f"quarry group consumers {quoted(lag.group)}"
    match each.kind:
        case Stuck.NO_CONSUMER:
            text = (
                f"group {lag.group} has no consumer in topic {lag.topic}: {waiting}, {oldest}. Start its consumers; if "
                "it does not read the topic any more, the command makes the broker forget that it did"
            )
            command = f"quarry group forget {quoted(lag.group)} --topic {quoted(lag.topic)}"
        case Stuck.NOTHING_DONE:
            text = f"group {lag.group} has acknowledged nothing of topic {lag.topic} for {since}: {waiting}, {oldest}"
        case Stuck.LAG_GROWS:
            text = f"the lag of group {lag.group} in topic {lag.topic} grows: {waiting}, {oldest}"
        case Stuck.LAG_OLD:
            text = f"group {lag.group} is behind in topic {lag.topic}: {waiting}, {oldest}"
            command = f"quarry lag {quoted(lag.group)}"
    subject = f"{lag.group}/{lag.topic}"
    return Concern(each.kind.value, Severity.WARNING, text, _page("groups", lag.group), command, each.since_ms, subject)


def _members(sources: Sources) -> Iterator[Concern]:
    if sources.cluster is None:
        return
    members, now_ms = sources.cluster.members, sources.components.clock.wall_ms()
    for each in members.all():
        silent_ms = members.running_ms if each.silent_ms is None else each.silent_ms
        if each.is_reachable or (not each.problem and silent_ms < members.unreachable_after_s * 1000):
            continue  # one that is not known to fail may not have been asked yet
        name, command, since_ms = each.member.name, "quarry cluster members", None
        if each.is_heard:
            text = (
                f"member {name} answers, but not at its admin address: {each.problem}. Sends of message groups and "
                "handovers wait for it; set cluster.advertise there"
            )
        else:
            text, since_ms = f"member {name} is not reachable: no answer for {_span(silent_ms)}", now_ms - silent_ms
            if silent_ms > MEMBER_GONE_S * 1000:
                text = f"{text}. Start it; if it will never come back, the command removes it from the cluster"
                command = f"quarry cluster remove {quoted(name)}"
        yield Concern("member-unreachable", Severity.WARNING, text, "members", command, since_ms, name)


def _process(sources: Sources, around: HostCommands, late_s: float | None) -> Iterator[Concern]:
    if sources.maintenance.descriptors.concern:
        text, command = sources.maintenance.descriptors.concern, around.descriptors
        yield Concern("descriptors", Severity.WARNING, f"{text} (LimitNOFILE=)", "settings", command)
    if late_s is not None and late_s >= LOOP_LATE_S:
        text = f"the event loop was {late_s:.1f} s late in the last ten seconds"
        yield Concern("loop-late", Severity.WARNING, text, "", "quarry stats")


class UnsentDeadLetters:
    """Counts, in sweeps, the dead letters of all groups that nobody sent again. Lives on the event loop's thread."""

    def __init__(self, box: DeadLetterBox, groups_max: int) -> None:
        """`groups_max`: the groups whose counts are kept, those with most; the others are added up."""
        self._box = box
        self._groups_max = groups_max
        self.groups: Sequence[Unsent] = ()
        """The groups with most of them, as of the last sweep. For any thread."""
        self._count = 0

    def steps(self) -> Iterator[None]:
        """Look at the dead letters of one group after another."""
        found: list[Unsent] = []
        count = 0
        for each in self._box.unsent():
            yield
            if each is None:
                continue
            count += 1
            found.append(each)
            if len(found) >= 2 * self._groups_max:
                found = nlargest(self._groups_max, found, key=_letters)
        self.groups, self._count = nlargest(self._groups_max, found, key=_letters), count

    def concerns(self) -> Iterator[Concern]:
        for each in self.groups[:SHOWN]:
            letters = "1 dead letter" if each.letters == 1 else f"{each.letters:,} dead letters"
            text = f"group {each.group} has {letters} that nobody sent again. Fix the consumer first"
            command = f"quarry dead-letters resend {quoted(each.group)}"
            page = _page("dead-letters", each.group)
            yield Concern("dead-letters", Severity.WARNING, text, page, command, each.first_stored_ms, each.group)
        if self._count > SHOWN:
            text = f"{self._count - SHOWN} more groups have dead letters"
            yield Concern(
                "dead-letters", Severity.WARNING, text, "dead-letters", "quarry group top", subject="the rest"
            )


def _letters(each: Unsent) -> int:
    return each.letters


def _messages(count: int, one: str, many: str) -> str:
    return f"1 message {one}" if count == 1 else f"{count:,} messages {many}"


def _page(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _span(milliseconds: int) -> str:
    """Write a time span with its two largest units."""
    minutes, seconds = divmod(max(0, milliseconds) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"
