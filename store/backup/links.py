"""A second name for a file, where the file system gives one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from quarry_mq.store.fs import CopyingDisk

CANNOT_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
"""Another file system, one without links, too many of them, a file of somebody else (protected_hardlinks)."""


def links(disk: CopyingDisk, source: Path, target: Path) -> bool:
    """Whether `target` is a second name of `source` now; False: it has to be copied. Raises OSError."""
    try:
        disk.link_file(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        return False
    return True
