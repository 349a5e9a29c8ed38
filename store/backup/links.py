"""The module gives a file a second name, where the file system can."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from quarry_mq.store.fs import CopyingDisk

CANNOT_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
"""The errors for another file system, one without links, too many links, and a foreign file (protected_hardlinks)."""


def links(disk: CopyingDisk, source: Path, target: Path) -> bool:
    """Make `target` a second name of `source`; return False if it has to be copied instead. Raises OSError."""
    try:
        disk.link_file(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        return False
    return True
