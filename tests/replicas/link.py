"""A bad network: the link between two machines, each a network namespace, that delays and loses packets.

The kernel of a test machine may have no `netem`. So the link is two TUN devices, one in each namespace, and a thread
of the test carries packets between them.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from itertools import count
from random import Random
from typing import Final

TUNSETIFF: Final = 0x400454CA
IFF_TUN_WITHOUT_HEADER: Final = 0x1001
PACKET_MAX: Final = 65_536
QUEUE_MAX: Final = 1_000
"""Packets on their way in one direction. A full queue loses the newest ones, as a router does."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Link:
    """The link between `here`, an address in the namespace of the test, and `there`, one in another namespace."""

    def __init__(self, namespace: str, here: str, there: str) -> None:
        self.delay_s = 0.0
        """Seconds that a packet needs in one direction."""
        self.jitter_s = 0.0
        """Seconds by which a packet may need longer; packets overtake each other then."""
        self.loss = 0.0
        """Probability that a packet is lost."""
        self.is_cut_from_here = False
        self.is_cut_from_there = False
        self._random = Random(1)
        self._order = count()
        self._is_closed = False
        self._inside = _tun(f"qi{os.getpid()}")
        self._outside = _tun(f"qo{os.getpid()}")
        ip("link", "set", f"qi{os.getpid()}", "netns", namespace)
        ip("-n", namespace, "addr", "add", there, "peer", here, "dev", f"qi{os.getpid()}")
        ip("-n", namespace, "link", "set", f"qi{os.getpid()}", "up")
        ip("addr", "add", here, "peer", there, "dev", f"qo{os.getpid()}")
        ip("link", "set", f"qo{os.getpid()}", "up")
        self._thread = threading.Thread(target=self._carry, name="link")
        self._thread.start()

    def close(self) -> None:
        """Remove both devices."""
        self._is_closed = True
        self._thread.join()
        os.close(self._inside)
        os.close(self._outside)

    def mend(self) -> None:
        """Carry every packet at once from now on."""
        self.delay_s = self.jitter_s = self.loss = 0.0
        self.is_cut_from_here = self.is_cut_from_there = False

    def _carry(self) -> None:
        on_their_way: list[tuple[float, int, int, bytes]] = []  # due, order, to which device, packet
        while not self._is_closed:
            now_s = time.monotonic()
            while on_their_way and on_their_way[0][0] <= now_s:
                _, _, to, packet = heapq.heappop(on_their_way)
                os.write(to, packet)
            wait_s = min(0.1, on_their_way[0][0] - now_s) if on_their_way else 0.1
            for device in select.select([self._inside, self._outside], [], [], max(0.0, wait_s))[0]:
                packet = os.read(device, PACKET_MAX)
                is_cut = self.is_cut_from_here if device == self._outside else self.is_cut_from_there
                if is_cut or self._random.random() < self.loss or len(on_their_way) >= 2 * QUEUE_MAX:
                    continue
                due_s = time.monotonic() + self.delay_s + self.jitter_s * self._random.random()
                to = self._inside if device == self._outside else self._outside
                heapq.heappush(on_their_way, (due_s, next(self._order), to, packet))


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    return device
