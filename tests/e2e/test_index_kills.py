"""`kill -9` while the files of the tiered index go through their stages and somebody asks for messages by their keys.

Who asks is the oracle, all the time: what an answer has is right, nothing comes twice, and what was acknowledged before
the question is there, unless the answer says that files could not be read or that the index has to catch up.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import grpc
import pytest

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import OutgoingMessage
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage, decode_record
from tests.e2e.broker import Broker, environment_of, until

TOPIC: Final = "orders"
NEWEST: Final = 50
CALL_TIMEOUT_S: Final = 10.0
PAUSE_S: Final = 0.005
SAVED_S: Final = 5.0
"""How often the broker writes down how far its index has got: files go on behind that."""


class Sender(threading.Thread):
    """Sends numbers, each once, and remembers which were acknowledged."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.ended = threading.Event()
        self._endpoint = endpoint
        self._number = 0

    def run(self) -> None:
        while not self.ended.is_set():
            with suppress(grpc.RpcError, CallRefused), MessagingClient(Endpoint(self._endpoint)) as client:
                while not self.ended.is_set():
                    self._number += 1
                    number = self._number
                    client.send(OutgoingMessage(topic=TOPIC, body=b"%d" % number, keys=["all", f"n{number}"]))
                    self.acknowledged.append(number)
                    time.sleep(PAUSE_S)
            time.sleep(0.05)


class Asker(threading.Thread):
    """Asks for one message and for the newest, in turns, and keeps what was wrong with the answers."""

    def __init__(self, admin: str, sender: Sender, chance: Random) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.answers: Counter[str] = Counter()
        self._admin = admin
        self._sender = sender
        self._chance = chance

    def run(self) -> None:
        while not self._sender.ended.is_set():
            with suppress(grpc.RpcError), grpc.insecure_channel(self._admin) as channel:
                while not self._sender.ended.is_set():
                    self.ask(channel)

    def ask(self, channel: grpc.Channel) -> None:
        known = list(self._sender.acknowledged)
        if not known:
            return
        one = self._chance.choice([*known[-20:], *self._chance.sample(known, min(20, len(known)))])
        self._check(f"n{one}", [one], *numbers_found(channel, f"n{one}", 10))
        found, is_whole = numbers_found(channel, "all", NEWEST)
        wanted = [number for number in known if not found or number > min(found)][-NEWEST:]
        self._check("all", wanted, found, is_whole)

    def _check(self, key: str, wanted: list[int], found: list[int], is_whole: bool) -> None:
        self.answers["whole" if is_whole else "with something missing"] += 1
        is_one = key != "all"
        if found != sorted(set(found), reverse=True) or (is_one and set(found) - set(wanted)):
            self.wrong.append(f"{key}: {found}")
        if is_whole and set(wanted) - set(found):
            self.wrong.append(f"{key}: {sorted(set(wanted) - set(found))} are missing")


def numbers_found(channel: grpc.Channel, key: str, limit: int) -> tuple[list[int], bool]:
    """The newest first, and whether nothing may be missing."""
    request = pb.QueryMessagesRequest(topic=TOPIC, key=key, limit=limit)
    answer = QueryServiceStub(channel).QueryMessages(request, timeout=CALL_TIMEOUT_S)
    found = []
    for each in answer.messages:
        record = decode_record(memoryview(each.record), 0, PhysicalOffset(each.physical_offset), check_crc=True)
        assert isinstance(record, StoredMessage)
        assert record.properties["KEYS"] == f"all n{int(record.body)}"
        found.append(int(record.body))
    return found, not answer.unread and answer.indexed_offset >= answer.dispatched_offset


@pytest.mark.timeout(1_200)  # each message is looked for at the end
@pytest.mark.parametrize("kills", [pytest.param(kills, marks=pytest.mark.slow) for kills in (1, 25)])
def test_every_message_is_found_by_its_key_once_however_often_the_broker_is_killed(tmp_path: Path, kills: int) -> None:
    settings = {
        "index.tiered": "true",
        "index.tiered_slots": 50,
        "index.tiered_items": 300,
        "index.upload_to": str(tmp_path / "objects"),
        "index.keep_uploaded": "false",
    }
    chance = Random(kills)
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    sender = Sender(broker.endpoint)
    asker = Asker(broker.admin, sender, chance)
    try:
        broker.start()
        for thread in (sender, asker):
            thread.start()
        for _ in range(kills):
            time.sleep(SAVED_S + chance.uniform(0.0, 3.0))
            broker.kill()
            broker.start()
        until(lambda: len(list(tmp_path.glob("objects/*"))) > 2, "full files are uploaded")
        sender.ended.set()
        for thread in (sender, asker):
            thread.join(60)
        assert asker.wrong == []
        assert asker.answers["whole"] > 50 * kills, asker.answers
        with grpc.insecure_channel(broker.admin) as channel:
            until(lambda: numbers_found(channel, "all", 1)[1], "the index has caught up")
            for number in sender.acknowledged:
                assert numbers_found(channel, f"n{number}", 10) == ([number], True)
        broker.administer("index", "verify")
        broker.stop()
    finally:
        sender.ended.set()
        broker.close()
