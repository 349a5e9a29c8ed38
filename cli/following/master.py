"""A RocketMQ master as a follower sees it: what kind of broker it is, how far its log goes, and its metadata."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.client.remoting import RemotingClient, RemotingFailed
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.rocketmq.pending_progress import DELAY_OFFSETS, TIMER_CHECK, TIMER_CHECK_SIZE

FILES: Final = {
    "topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
    "subscriptionGroup.json": RequestCode.GET_ALL_GROUP_CONFIG,
    "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
}
"""The files of `config/` with topics, groups and positions, whose content the master sends, and the request codes."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of the log that the master has at a moment."""

    minimum: PhysicalOffset
    end: PhysicalOffset


REFUSED_UNTIL: Final = "startAcceptSendRequestTimeStamp"
"""RocketMQ's setting with the time in ms before which a broker refuses messages: "broker unable to service, until".

The permission of a broker (`brokerPermission`) refuses at once for ordered topics alone. Other producers learn of it
with their next look at the route, up to 30 s later.
"""
_YEAR_2100_MS: Final = 4_102_444_800_000
PROGRESS_ATTEMPTS: Final = 10
"""The number of times that the progress of delayed messages is read until the log does not grow meanwhile."""


class TakenMetadata(NamedTuple):
    """The metadata are RocketMQ's files of `config/`, as the master had them in its memory."""

    files: Mapping[str, bytes]
    log_before: PhysicalOffset
    """The end of the log before any of it was read."""
    log_end: PhysicalOffset | None
    """The end of the log when the progress of delayed messages was read; None if the log grew meanwhile."""

    @property
    def topics(self) -> Collection[str]:
        """Return the names of the master's topics. Raises ValueError if it has sent something else."""
        topics: dict[str, object] = json.loads(self.files["topics.json"])["topicConfigTable"]
        return topics.keys()

    def write(self, disk: Disk, directory: Path) -> None:
        """Write the files, each of them as a whole. Raises OSError."""
        disk.make_directories(directory)
        for name, body in self.files.items():
            disk.replace_atomically(directory / name, body)


class Master:
    """A RocketMQ master at the other end of a client.

    Its methods raise what `RemotingClient.call` raises.
    """

    def __init__(self, client: RemotingClient) -> None:
        """Ask the broker for its settings. Raises StoreUnusable, with the reason, if it cannot be followed."""
        self._client = client
        self.host: Final = client.host
        text = client.call(RequestCode.GET_BROKER_CONFIG).body.decode(errors="replace")
        self._settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if reason := self._why_not():
            raise StoreUnusable(Path(self._settings.get("storePathRootDir", "store")), reason)

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def refuse_messages(self) -> None:
        """Let the broker refuse what producers send, at once and also after a restart with its settings file."""
        self._set(REFUSED_UNTIL, _YEAR_2100_MS)

    def take_messages(self) -> None:
        """Let the broker take what producers send."""
        self._set(REFUSED_UNTIL, 0)

    def _set(self, setting: str, value: int) -> None:
        self._client.call(RequestCode.UPDATE_BROKER_CONFIG, body=f"{setting}={value}\n".encode())

    def _why_not(self) -> str:
        """Return why the broker cannot be followed; nothing if it can."""
        settings = self._settings
        if settings.get("brokerRole") == "SLAVE":
            return "the broker is a slave: follow its master"
        if settings.get("enableDLegerCommitLog") == "true":
            return "the broker uses DLedger (enableDLegerCommitLog), whose log has other records: it cannot be followed"
        return ""

    @property
    def segment_size(self) -> int:
        """Return the size of the master's log segments in bytes; a follower's have the same."""
        return int(self._settings["mappedFileSizeCommitLog"])

    @property
    def ha_port(self) -> int:
        """Return the port that slaves connect to."""
        return int(self._settings["haListenPort"])

    @property
    def is_controlled(self) -> bool:
        """Return whether the broker is in controller mode, whose slaves speak another protocol."""
        return self._settings.get("enableControllerMode") == "true"

    @property
    def has_notes_in_log(self) -> bool:
        """Return whether the log says which messages are in flight."""
        return self._settings.get("popConsumerKVServiceEnable") != "true"

    @property
    def kind(self) -> StoreKind:
        """Return the kind of store, which says how the master numbers the messages of light queues."""
        is_rocksdb = self._settings.get("storeType", "").lower() == "defaultrocksdb"
        return StoreKind.ROCKETMQ_ROCKSDB if is_rocksdb else StoreKind.ROCKETMQ_FILE

    def log_range(self) -> LogRange:
        """Return what the master's log has now."""
        table = json.loads(self._client.call(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        # the minimum of a log that has no message yet is -1
        begin, end = (max(0, int(table[name])) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        return LogRange(PhysicalOffset(begin), PhysicalOffset(end))

    def read_metadata(self) -> TakenMetadata:
        """Return the master's metadata.

        The positions of groups are read before the end of the log, and what was delivered with a delay together with
        it: a position is stored after what the consumer has sent back, and a delayed message counts as delivered after
        its copy was appended. So no message is lost between the two, whatever the master does meanwhile.
        """
        log_before = self.log_range().end
        files = {name: self._client.call(code).body for name, code in FILES.items()}
        log_end = None
        for _ in range(PROGRESS_ATTEMPTS):
            before = self.log_range().end
            files |= self._progress()
            if self.log_range().end == before:
                log_end = before
                break
        return TakenMetadata(files, log_before, log_end)

    def _progress(self) -> dict[str, bytes]:
        """Return the files that say which delayed messages were delivered."""
        files = {DELAY_OFFSETS: self._client.call(RequestCode.GET_ALL_DELAY_OFFSET).body}
        try:
            checkpoint = self._client.call(RequestCode.GET_TIMER_CHECK_POINT).body
        except RemotingFailed:
            pass  # RocketMQ 4 has no timers
        else:
            # without it all timers of the log would be delivered again; the master sends the first 56 bytes
            files[TIMER_CHECK] = checkpoint.ljust(TIMER_CHECK_SIZE, b"\0")
        return files
