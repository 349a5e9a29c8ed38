"""Files and directories of a simulated disk, each as programs see it and as it is on the platter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.faults.disk import PAGE, SECTOR

if TYPE_CHECKING:
    from tests.faults.kernel import Kernel

INODE_NUMBERS: Final = count(1)


class Pages(bytearray):
    """The page cache of one file. What a mapping stores arrives here by itself, without a system call."""

    inode: Inode

    def __setitem__(self, where: Any, data: Any) -> None:
        start, stop, _ = where.indices(len(self))
        if len(data) != stop - start:
            raise IndexError("the slice has another size")
        self.inode.kernel.store(self.inode, start, bytes(data))

    def madvise(self, advice: int, start: int, length: int) -> None:
        self.inode.kernel.step(f"populate {self.inode.name}")


class Inode:
    """One file: `live` as programs see it, `durable` as the platter holds it."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.number = next(INODE_NUMBERS)
        self.durable = b""
        self.dirty: set[int] = set()
        self.live = Pages()
        self.live.inode = self

    def resize(self, size: int) -> None:
        self.live = Pages(self.live[:size].ljust(size, b"\0"))
        self.live.inode = self

    def change(self, position: int, data: bytes) -> None:
        end = position + len(data)
        if end > len(self.live):
            self.resize(end)
        bytearray.__setitem__(self.live, slice(position, end), data)
        self.dirty.update(range(position // PAGE, -(-end // PAGE)))

    def settle(self, pages: set[int]) -> None:
        """Write these pages to the platter; the length follows once all are there."""
        platter = bytearray(self.durable.ljust(len(self.live), b"\0"))
        for page in pages:
            here = slice(page * PAGE, (page + 1) * PAGE)
            platter[here] = self.live[here]
        self.dirty -= pages
        self.durable = bytes(platter if not self.dirty else platter[: max(len(self.durable), _end(pages))])

    def sync(self, cut: Random | None) -> None:
        """The bytes reach the platter; in the middle of a cut, some pages do."""
        self.settle({page for page in self.dirty if cut is None or cut.random() < 0.5})
        if cut is None:
            self.durable = bytes(self.live)

    def power_loss(self, chance: Random) -> None:
        size = chance.choice((len(self.durable), len(self.live)))
        survivor = bytearray(self.durable[:size].ljust(size, b"\0"))
        for page in sorted(self.dirty):
            fate = chance.choice(("lost", "kept", "torn"))
            for start in range(page * PAGE, min((page + 1) * PAGE, size), SECTOR):
                if fate == "kept" or (fate == "torn" and chance.random() < 0.5):
                    survivor[start : min(start + SECTOR, size)] = self.live[start : min(start + SECTOR, size)]
        self.durable = bytes(survivor)
        self.dirty = set()
        self.resize(0)
        self.resize(size)
        bytearray.__setitem__(self.live, slice(0, size), self.durable)


def _end(pages: set[int]) -> int:
    return (max(pages) + 1) * PAGE if pages else 0


class Directory:
    """Names as programs see them, as the platter holds them, and the changes that lie between."""

    def __init__(self) -> None:
        self.live: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[Callable[[dict[str, Inode | Directory]], None]] = []

    def change(self, act: Callable[[dict[str, Inode | Directory]], None]) -> None:
        act(self.live)
        self.pending.append(act)

    def settle(self, count: int | None = None) -> None:
        for act in self.pending[:count]:
            act(self.durable)
        self.pending = []

    def settle_some(self, chance: Random) -> None:
        """Here and below, the first few changes took place."""
        self.settle(chance.randint(0, len(self.pending)))
        for name in sorted(self.durable):
            below = self.durable.get(name)  # a move that one of the others held may have taken it away
            if isinstance(below, Directory):
                below.settle_some(chance)

    def sync(self, cut: Random | None) -> None:
        """Names and bytes, here and below, reach the platter; in the middle of a cut, some files and names do."""
        if cut is None or cut.random() < 0.5:
            self.settle()
        for name in sorted(self.live):
            self.live[name].sync(cut)

    def power_loss(self, chance: Random) -> None:
        """Return to what is durable, once `settle_some` is through: a move between directories changes both."""
        self.live = dict(self.durable)
        for name in sorted(self.live):
            self.live[name].power_loss(chance)
