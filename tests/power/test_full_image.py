"""An ext4 without a free block: where the disk is full at a start, in a recovery, and again and again under load.

`tests/hostile/test_full_disk.py` has what a running broker does when its disk fills up.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.caller import Client
from tests.power.conftest import MakeBroker, MakeImage
from tests.power.sender import SETTINGS, Sender, all_messages

MIB: Final = 1 << 20
FREE_BYTES: Final = (0, 4096, 64 << 10, 512 << 10, 2 * MIB, 16 * MIB, 48 * MIB)
ROUNDS: Final = 15
SMALL: Final[dict[str, object]] = {**SETTINGS, "store.queue_flush_size": "1MiB"}


class Filler:
    """A file that takes the room away."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "something-else"

    def leave(self, free_bytes: int) -> None:
        """Take or give back until about so many bytes are free."""
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            system = os.statvfs(self._path.parent)
            wanted = size + system.f_bfree * system.f_frsize - free_bytes
            if wanted <= size:
                file.truncate(max(0, wanted))
                return
            try:
                os.posix_fallocate(file.fileno(), 0, wanted)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            if free_bytes == 0:
                self._take_the_last_blocks(file.fileno())

    @staticmethod
    def _take_the_last_blocks(number: int) -> None:
        try:
            while True:
                os.write(number, bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("queues_are_gone", [False, True])
def test_a_recovery_that_finds_no_room_ends_with_one_line_or_serves(
    queues_are_gone: bool, make_image: MakeImage, make_broker: MakeBroker, tmp_path: Path
) -> None:
    """However little is free: no message is lost, and with room the next start has everything."""
    image = make_image(160)
    filler = Filler(image.mount_point)
    broker = make_broker(image.mount_point / "store", SMALL).start()
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(60, size=100_000) == 60
        assert sender.send(50) == 50
    broker.kill()
    pristine = tmp_path / "pristine"
    shutil.copytree(broker.store, pristine)
    statuses = []
    for free_bytes in FREE_BYTES:
        shutil.rmtree(broker.store)
        shutil.copytree(pristine, broker.store)
        if queues_are_gone:
            shutil.rmtree(broker.store / "consumequeue_rocksdb")
        filler.leave(free_bytes)
        broker.launch()
        status = broker.ready_or_ended()
        statuses.append(status)
        if status is None:
            broker.kill()
        else:
            assert status == 2, broker.words()
            assert "No space left on device" in broker.words()
        filler.leave(64 * MIB)
        broker.start()
        assert sender.acknowledged <= all_messages(broker, "auditors"), free_bytes
        broker.kill()
    print(json.dumps(dict(zip(map(str, FREE_BYTES), statuses, strict=True))))
    assert statuses[-1] is None
    broker.assert_no_stack_trace()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_room_that_comes_and_goes_under_load_loses_nothing(make_image: MakeImage, make_broker: MakeBroker) -> None:
    seed = int(os.environ.get("POWER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"POWER_SEED={seed}")
    chance = random.Random(seed)
    image = make_image(256)
    filler = Filler(image.mount_point)
    broker = make_broker(image.mount_point / "store", SMALL).start()
    acknowledged: set[str] = set()
    refusals = ended = 0
    for number in range(ROUNDS):
        with Client(broker.endpoint) as client:
            sender = Sender(client, prefix=f"r{number}-")
            for _ in range(3):
                filler.leave(chance.choice((0, 0, 64 << 10, MIB, 3 * MIB, 40 * MIB)))
                sender.send(chance.randrange(1, 40), size=chance.choice((10, 1000, 30_000)))
            refusals += len(sender.refusals)
            acknowledged |= sender.acknowledged
            for refusal in sender.refusals:
                assert refusal.startswith("TOO_MANY_REQUESTS: "), refusal
        broker.kill()
        broker.launch()
        if broker.ready_or_ended() is not None:
            ended += 1
            filler.leave(64 * MIB)
            broker.start()
    filler.leave(64 * MIB)
    broker.kill()
    broker.start()
    found = all_messages(broker, "auditors")
    print(json.dumps({"acknowledged": len(acknowledged), "refused": refusals, "starts_without_room": ended}))
    assert acknowledged <= found
    assert refusals
    broker.assert_no_stack_trace()
    broker.stop()
    image.unmount()
    image.check()
