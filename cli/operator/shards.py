"""Reconciles the shards of a release: who serves each shard, promotions of copies, and how many shards there are.

A shard is one pod of a stateful set, or two that hold copies of one store: those with the same number in two sets. The
pods say themselves which of them is the primary (`/replica`). The operator gives the primary the label by which
Services find it.

    every second:  ask all pods  →  label the primary of each shard  →  promote a copy, if that is allowed
                                 →  one shard more, or one fewer
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quarry_mq.cli.operator.broker import Broker, BrokerAway, CallRefused
from quarry_mq.cli.operator.kubernetes import Kubernetes, Pod
from quarry_mq.cli.operator.resources import READY, SHARD_SET, Condition, Note, Outcome, Resource
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2, overview_pb2, storage_pb2

LOOK_S: Final = 1.0
"""Seconds between two looks at the shards."""

TOLD_EVERY_S: Final = 10.0
"""Seconds after which the lags in the status are renewed, if nothing else has changed."""

PROMOTION_TIMEOUT_S: Final = 30.0
STORE: Final = "/var/lib/quarry/store"
"""The folder of the store in a pod of the chart."""

PRIMARY: Final = "primary"
COPY: Final = "copy"
_NUMBER: Final = re.compile(r"-(\d+)$")

Ask = Callable[[Pod, "Wanted"], Awaitable["Answer | None"]]
"""Asks a pod what it is; the answer is None if the pod does not answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a pod to `/replica`."""

    is_ready: bool
    document: Mapping[str, Any]

    @property
    def role(self) -> str:
        return str(self.document.get("role"))

    @property
    def term(self) -> int:
        return int(self.document.get("term") or 0)

    @property
    def serves(self) -> bool:
        """Return whether this is a primary that serves clients. It may be ready later."""
        return self.role == PRIMARY and bool(self.document.get("serving"))

    @property
    def can_be_promoted(self) -> bool:
        """Return whether this is a whole copy."""
        return self.role == COPY and not self.document.get("seeding") and self.document.get("heardAtMs") is not None

    @property
    def silent_s(self) -> float:
        """Return for how long the copy has not heard of its primary, by the clock of its machine."""
        document = self.document
        return (int(document.get("atMs") or 0) - int(document.get("heardAtMs") or 0)) / 1000

    @property
    def missing(self) -> Mapping[str, Any]:
        """Return what the copy did not have, when it last heard of its primary, as the status says it."""
        document = self.document
        return {
            "bytes": document.get("missingBytes", 0),
            "changes": document.get("missingChanges", 0),
            "lagSeconds": document.get("lagSeconds", 0),
        }

    @property
    def missing_text(self) -> str:
        """Return the words for what the copy did not have."""
        missing = self.missing
        size = f"{missing['bytes']:,} bytes and {missing['changes']:,} changes"
        return f"{size}, the oldest of them {missing['lagSeconds']:.1f} s old"


@dataclass(slots=True)
class Shard:
    """The pods of one shard with their answers, as one look has found them."""

    number: int
    pods: dict[str, Answer | None] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    """The role that the label of each pod says."""

    def primary(self, term_min: int) -> str | None:
        """Return the pod that serves the shard. One of an older term has not heard yet that another was promoted."""
        serving = [
            (answer.term, name)
            for name, answer in self.pods.items()
            if answer is not None and answer.serves and answer.term >= term_min
        ]
        return max(serving)[1] if serving else None

    def copies(self) -> dict[str, Answer]:
        return {name: answer for name, answer in self.pods.items() if answer is not None and answer.role == COPY}

    @property
    def has_another(self) -> bool:
        """Return whether a pod answers that is no copy: a primary that does not serve, or is about to."""
        return any(answer is not None and answer.role != COPY for answer in self.pods.values())

    def candidate(self) -> str | None:
        """Return the copy to promote: the one that has most of the log."""
        found = {name: each for name, each in self.copies().items() if each.can_be_promoted}
        return max(found, key=lambda name: (found[name].document.get("logEnd") or 0, name), default=None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The specification of a set of shards."""

    shards: int
    sets: Sequence[str]
    """Names of the stateful sets: that of the shards, and that of their copies."""
    selector: Mapping[str, str]
    promotes_after_s: float | None
    """The operator promotes no copy if this is None."""
    has_tls: bool
    """The HTTP ports of the pods have TLS if this is true."""
    domain: str
    """The domain below which each pod has its name; empty if certificates do not matter."""

    @classmethod
    def of(cls, resource: Resource) -> Wanted:
        spec = resource.spec
        after = spec.get("promotion", {}).get("afterSeconds")
        return cls(
            int(spec["shards"]),
            tuple(spec["statefulSets"]),
            dict(spec["selector"]),
            None if after is None else float(after),
            bool(spec.get("http", {}).get("tls")),
            str(spec.get("http", {}).get("domain") or ""),
        )


class ShardReconciler:
    """Brings the shards of a release to what a ShardSet says."""

    kind = SHARD_SET

    def __init__(self, broker: Broker, kubernetes: Kubernetes, clock: Clock, ask: Ask) -> None:
        self._broker = broker
        self._kubernetes = kubernetes
        self._clock = clock
        self._ask = ask
        self._silent_since_s: dict[tuple[str, int], float] = {}
        self._told_s: dict[str, float] = {}

    def thing(self, resource: Resource) -> str:
        return resource.name

    async def reconcile(self, resource: Resource, rivals: Collection[Resource]) -> Outcome:
        """Look at all shards. Raises KubernetesFailed."""
        del rivals
        if resource.is_being_deleted:
            return Outcome()
        wanted = Wanted.of(resource)
        shards = await self._shards(wanted)
        before = {int(each["number"]): each for each in resource.status.get("shards") or ()}
        notes: list[Note] = []
        rows, problems = [], []
        for number in range(wanted.shards):
            shard = shards.get(number, Shard(number))
            row, problem, done = await self._led(resource, wanted, shard, before.get(number, {}))
            rows.append(row)
            problems += [problem] if problem else []
            notes += done
        fields: dict[str, Any] = {"shards": rows}
        try:
            scaling, more = await self._scaled(resource, wanted)
            fields |= more.fields
            notes += more.notes
        except (BrokerAway, CallRefused) as error:
            scaling = f"the number of shards is not changed: {error}"
        problems += [scaling] if scaling else []
        text = "; ".join(problems)
        ready = Condition(READY, not problems, "Waiting" if problems else "AllServe", text or "every shard is served")
        return self._told(resource, Outcome(conditions=[ready], fields=fields, notes=notes, again_s=LOOK_S))

    def _told(self, resource: Resource, outcome: Outcome) -> Outcome:
        """Leave the lags as the status has them, unless it is time to renew them: each change is a write."""
        now_s = self._clock.monotonic_s()
        is_due = now_s - self._told_s.get(resource.uid, -TOLD_EVERY_S) >= TOLD_EVERY_S
        fields = outcome.fields
        rows = fields["shards"]
        if is_due or outcome.notes or _without_lags(rows) != _without_lags(resource.status.get("shards") or ()):
            self._told_s[resource.uid] = now_s
        else:
            rows = list(resource.status["shards"])
        lags = [row["missing"] for row in rows if "missing" in row]
        longest = max((each["lagSeconds"] for each in lags), default=0)
        served = sum("primary" in row for row in rows)
        summary = {"served": f"{served}/{len(rows)}", "lag": f"{longest} s" if lags else ""}
        return replace(outcome, fields={**fields, **summary, "shards": rows})

    async def _shards(self, wanted: Wanted) -> dict[int, Shard]:
        """Ask all pods of the sets at once."""
        pods = [each for each in await self._kubernetes.pods(wanted.selector) if _set_of(each.name) in wanted.sets]
        answers = await asyncio.gather(*(self._ask(each, wanted) for each in pods))
        shards: dict[int, Shard] = {}
        for pod, answer in zip(pods, answers, strict=True):
            number = _number_of(pod.name)
            shard = shards.setdefault(number, Shard(number))
            shard.pods[pod.name], shard.labels[pod.name] = answer, pod.role
        return shards

    # -- who serves a shard

    async def _led(
        self, resource: Resource, wanted: Wanted, shard: Shard, before: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str, list[Note]]:
        """Label the primary of a shard, or promote a copy.

        Returns the row of the status, a problem if there is one, and what was done.
        """
        row: dict[str, Any] = {"number": shard.number}
        name = shard.primary(int(before.get("term") or 0))
        answer = None if name is None else shard.pods[name]
        if name is None or answer is None:
            problem, notes = await self._without_primary(resource, wanted, shard, before)
            # the term stays, and so does what a copy missed
            return row | {each: before[each] for each in ("term", "missing") if each in before}, problem, notes
        self._silent_since_s.pop((resource.uid, shard.number), None)
        row |= {"primary": name, "term": answer.term}
        if len(wanted.sets) == 1:
            return row, "", []
        notes = await self._labelled(shard, name)
        following = {copy: each for copy, each in shard.copies().items() if each.is_ready}
        if not following:
            return row, f"shard {shard.number} has no copy that follows", notes
        copy = min(following, key=lambda each: (following[each].document.get("lagSeconds") or 0, each))
        return row | {"copy": copy, "missing": following[copy].missing}, "", notes

    async def _labelled(self, shard: Shard, primary: str) -> list[Note]:
        notes = []
        # first those that serve no more: no Service leads to two of a shard
        for pod in sorted(shard.pods, key=lambda name: name == primary):
            role = PRIMARY if pod == primary else COPY
            if shard.labels[pod] != role:
                await self._kubernetes.label_pod(pod, role)
                if role == PRIMARY:
                    notes.append(Note("ClientsLed", f"Clients of shard {shard.number} are led to {pod}."))
        return notes

    async def _without_primary(
        self, resource: Resource, wanted: Wanted, shard: Shard, before: Mapping[str, Any]
    ) -> tuple[str, list[Note]]:
        """Promote a copy if that is allowed, and return the problem and what was done."""
        key, now_s = (resource.uid, shard.number), self._clock.monotonic_s()
        what = f"shard {shard.number} has no primary that serves"
        if shard.has_another or len(wanted.sets) == 1:
            self._silent_since_s.pop(key, None)
            return what, []
        # both count: the operator may be cut off, and not the primary
        silent_here_s = now_s - self._silent_since_s.setdefault(key, now_s)
        silent_s = min([silent_here_s, *(each.silent_s for each in shard.copies().values())])
        candidate = shard.candidate()
        if candidate is None:
            return f"{what}, and no copy that can be promoted", []
        copy = shard.pods[candidate]
        assert copy is not None
        lost = f"{candidate} missed {copy.missing_text}, when it last heard of {copy.document.get('primary')}"
        if wanted.promotes_after_s is None:
            command = f"kubectl exec {candidate} -- quarry replica promote --store {STORE}"
            return f"{what}; {lost}; to make it the primary: {command}", []
        if silent_s < wanted.promotes_after_s:
            return f"{what} for {silent_s:.0f} s: {candidate} is promoted after {wanted.promotes_after_s:.0f} s", []
        done, text = await self._kubernetes.run(
            candidate,
            ("quarry", "replica", "promote", "--store", STORE, "--yes"),
            timeout_s=PROMOTION_TIMEOUT_S,
        )
        if not done:
            return f"{what}: {candidate} could not be promoted: {text}", []
        self._silent_since_s.pop(key, None)
        old = before.get("primary") or copy.document.get("primary")
        note = (
            f"Shard {shard.number}: {candidate} was promoted, since {old} did not answer for {silent_s:.0f} s; {lost}."
        )
        return what, [Note("Promoted", note, is_warning=True)]

    # -- how many shards there are

    async def _scaled(self, resource: Resource, wanted: Wanted) -> tuple[str, Outcome]:
        """Bring the number of shards to what is wanted, and return what is still waited for."""
        name = wanted.sets[0]
        have = await self._kubernetes.replicas(name)
        if have is None:
            return f"there is no StatefulSet {name}", Outcome()
        drained = [str(each) for each in resource.status.get("drained") or ()]
        if have < wanted.shards:
            return "", Outcome(notes=[await self._set(wanted, have, wanted.shards)])
        if have == wanted.shards:
            return await self._settled(wanted, drained)
        member = f"{name}-{have - 1}"
        states = await self._members()
        notes = []
        if states.get(member, ("", False))[0] == "active":
            await self._broker.call("MembersService/DrainMember", members_pb2.DrainMemberRequest(name=member))
            notes.append(Note("Draining", f"{member} takes no new messages: {wanted.shards} shards are wanted."))
        fields = {"drained": sorted({*drained, member})}
        left = await self._left_on(member) if member in states else ""
        if left:
            return f"{member} stays until its messages are consumed: {left}", Outcome(fields=fields, notes=notes)
        notes.append(await self._set(wanted, have, have - 1))
        return f"{member} leaves", Outcome(fields=fields, notes=notes)

    async def _set(self, wanted: Wanted, have: int, shards: int) -> Note:
        for each in wanted.sets:
            await self._kubernetes.scale(each, shards)
        return Note("Scaled", f"There are {shards} shards now, {have} before.")

    async def _settled(self, wanted: Wanted, drained: Sequence[str]) -> tuple[str, Outcome]:
        """Forget members that have left, and let those serve again that were to leave and stay after all."""
        if not drained:
            return "", Outcome()
        states = await self._members()
        notes, waiting = [], []
        for member in drained:
            state, is_reachable = states.get(member, ("", False))
            if _number_of(member) < wanted.shards:
                if state == "draining":
                    request = members_pb2.ActivateMemberRequest(name=member)
                    await self._broker.call("MembersService/ActivateMember", request)
                    notes.append(Note("Activated", f"{member} takes new messages again."))
            elif is_reachable:
                waiting.append(member)
            elif state:
                await self._broker.call("MembersService/RemoveMember", members_pb2.RemoveMemberRequest(name=member))
                notes.append(Note("Removed", f"{member} is no member of the cluster any more. Its volume stays."))
        text = f"{', '.join(waiting)} is still a member of the cluster" if waiting else ""
        return text, Outcome(fields={"drained": waiting}, notes=notes)

    async def _members(self) -> dict[str, tuple[str, bool]]:
        """Return the state of each member of the cluster, and whether it can be reached."""
        answer = await self._broker.call("MembersService/ListMembers", members_pb2.ListMembersRequest())
        return {each.name: (each.state, each.is_reachable) for each in answer.members}

    async def _left_on(self, member: str) -> str:
        """Return what consumers still have to get from a member; the empty text if there is nothing."""
        after = ""
        while True:
            request = overview_pb2.ListGroupFiguresRequest(after=after, limit=1_000)
            answer = await self._broker.of_member(
                member, "OverviewService/ListGroupFigures", request, overview_pb2.ListGroupFiguresResponse
            )
            for each in answer.groups:
                if not each.HasField("ready"):
                    return f"the messages of group {each.group.name} are not counted yet"
                if count := each.ready + each.in_flight:
                    return f"group {each.group.name} has {count} messages there"
            if not answer.has_more:
                break
            after = answer.groups[-1].group.name
        pending = await self._broker.of_member(
            member,
            "StorageService/ListPending",
            storage_pb2.ListPendingRequest(limit=1),
            storage_pb2.ListPendingResponse,
        )
        if not (pending.HasField("timers") and pending.HasField("transactions")):
            return "its delayed messages and transactions are not counted yet"
        if pending.timers or pending.transactions:
            return f"{pending.timers} delayed messages and {pending.transactions} transactions wait there"
        return ""


def _without_lags(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "missing"} for row in rows]


def _number_of(pod: str) -> int:
    found = _NUMBER.search(pod)
    return int(found[1]) if found else -1


def _set_of(pod: str) -> str:
    return _NUMBER.sub("", pod)
