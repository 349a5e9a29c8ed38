"""A device that refuses a write, met by the real kernel: what a failed fdatasync leaves in the page cache is a lie.

The file of the loop device lies in a tmpfs without a free page and has a hole where the second segment lies: writing
there fails on the device. Linux tells so once and counts the pages as clean from then on, though they were never
written; reads go on showing them until they leave the cache.

The hole must hold whole writes: of one that begins before it, the loop driver reports success though its rest is lost.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import PhysicalOffset
from tests.e2e.broker import Broker, until
from tests.hostile.caller import Client
from tests.power.conftest import MakeBroker
from tests.power.image import Ext4Image, require_root_and
from tests.power.sender import SETTINGS, Sender, all_messages, harvest

MIB: Final = 1 << 20
SEGMENT_SIZE: Final = 8 * MIB
IMAGE_MIB: Final = 128
SIZE: Final = 100_000
BLOCK: Final = 4096
FILEFRAG_LINE: Final = re.compile(r"^ *\d+: .*?: *(\d+)\.\. *\d+: *(\d+):", re.MULTILINE)
"""An extent of a file: its first block on the device and its number of blocks."""


class ThinDevice:
    """An ext4 whose device has a bad range until it is repaired."""

    def __init__(self, directory: Path) -> None:
        require_root_and("filefrag", "fallocate")
        self._tmpfs = directory / "thin"
        self._tmpfs.mkdir()
        size = f"size={IMAGE_MIB + 8}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "quarry-test", self._tmpfs], check=True)
        self._file = self._tmpfs / "image"
        self._filler = self._tmpfs / "filler"
        try:
            self.image = Ext4Image(self._file, directory / "mounted", IMAGE_MIB)
        except BaseException:
            self._unmount()
            raise

    def break_under(self, segment: Path) -> None:
        """Writes to the file fail on the device from now on. Nothing may have been written there yet."""
        subprocess.run(["sync", "-f", segment], check=True)
        subprocess.run(["fallocate", "-l", f"{IMAGE_MIB}M", self._file], check=True)
        done = subprocess.run(["filefrag", "-v", "-b4096", segment], capture_output=True, text=True, check=True)
        extents = FILEFRAG_LINE.findall(done.stdout)
        assert extents, done.stdout
        for begin, blocks in extents:
            place = ["-o", str(int(begin) * BLOCK), "-l", str(int(blocks) * BLOCK)]
            subprocess.run(["fallocate", "-p", *place, self._file], check=True)
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                return

    def repair(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        self.image.close()
        self._unmount()

    def _unmount(self) -> None:
        subprocess.run(["umount", "-l", self._tmpfs], check=True)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[ThinDevice]:
    device = ThinDevice(tmp_path)
    yield device
    device.close()


def send_until_refused(broker: Broker, device: ThinDevice) -> Sender:
    """The second segment breaks as soon as it is there, which is before it is used."""
    log = StorePaths(broker.store).commit_log
    second = log / segment_name(PhysicalOffset(SEGMENT_SIZE))
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(SEGMENT_SIZE // 2 // SIZE + 1, size=SIZE) > 0
        until(second.exists, "the second segment is prepared")
        device.break_under(second)
        while not sender.refusals:
            sender.send(1, size=SIZE)
        assert SEGMENT_SIZE // 2 < len(sender.acknowledged) * SIZE < SEGMENT_SIZE
        assert sender.refusals[0].startswith("INTERNAL_SERVER_ERROR: flushing the commit log failed ([Errno ")
        assert second.name in sender.refusals[0]
        assert sender.send(10, size=SIZE) == 0
        assert broker.get("/readyz")[0] == 503
        assert harvest(client, "readers") == sender.acknowledged
    lost = f"m{len(sender.acknowledged) + 1:05d}".encode()
    assert lost in second.read_bytes(), "the cache shows what the device does not have"
    return sender


@pytest.fixture
def broker(device: ThinDevice, make_broker: MakeBroker) -> Broker:
    settings = {**SETTINGS, "store.segment_size": SEGMENT_SIZE}
    return make_broker(device.image.mount_point / "store", settings).start()


def test_what_a_failed_flush_left_in_the_cache_does_not_count_as_durable(device: ThinDevice, broker: Broker) -> None:
    sender = send_until_refused(broker, device)
    broker.kill()
    device.repair()
    broker.start()
    shown = all_messages(broker, "auditors")
    assert sender.acknowledged <= shown
    device.image.cut()
    broker.kill()
    device.image.cycle()
    broker.start()
    assert shown <= all_messages(broker, "later-auditors"), "what a start has shown is on the device"
    broker.stop()
    device.image.unmount()
    device.image.check()


@pytest.mark.slow
def test_a_device_that_stays_broken_is_told_of_at_each_start(device: ThinDevice, broker: Broker) -> None:
    """A start either serves what was acknowledged or ends and names the file; it never makes anything worse."""
    sender = send_until_refused(broker, device)
    for number in range(3):
        broker.kill()
        broker.launch()
        status = broker.ready_or_ended()
        assert status is None, broker.words()
        assert sender.acknowledged <= all_messages(broker, f"auditors-{number}")
    device.repair()
    broker.kill()
    broker.start()
    assert sender.acknowledged <= all_messages(broker, "auditors")
    broker.stop()
