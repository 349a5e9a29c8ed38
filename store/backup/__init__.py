"""The package makes backups of a stopped store, or of a live one at a point that its broker sets (docs/backup.md).

Other packages import from here, not from the modules.
"""

from quarry_mq.store.backup.manifest import BackupFile, Manifest, damaged_files, read_manifest
from quarry_mq.store.backup.plan import (
    BackupPlan,
    BackupPoint,
    PlannedFile,
    backup_name,
    newest_backup,
    plan_live,
    plan_stopped,
    store_in,
)
from quarry_mq.store.backup.restoration import RestoreReport, check_restore, restore
from quarry_mq.store.backup.writer import BackupReport, write_backup

__all__ = [
    "BackupFile",
    "BackupPlan",
    "BackupPoint",
    "BackupReport",
    "Manifest",
    "PlannedFile",
    "RestoreReport",
    "backup_name",
    "check_restore",
    "damaged_files",
    "newest_backup",
    "plan_live",
    "plan_stopped",
    "read_manifest",
    "restore",
    "store_in",
    "write_backup",
]
