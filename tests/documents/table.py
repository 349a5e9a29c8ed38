"""Exceptions of single pages, in one place: blocks that are not run and why, slow ones, and needs of a page."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests import golden
from tests.documents.pages import PAGES, ROOT, blocks

FREE_LANGUAGES: Final = frozenset({"text"})
"""Pictures, bytes and formulas."""

NOT_RUN: Final = (
    # page, the reason that the page gives, how many blocks
    ("docs/benchmarks.md", "measures the machine for forty minutes", 1),
    ("docs/capacity.md", "measures the machine for minutes", 1),
    ("docs/clients/go.md", "needs a package registry", 1),
    ("docs/clients/java.md", "needs a package registry", 1),
    ("docs/clients/node.md", "needs a package registry", 1),
    ("docs/clients/python.md", "needs a package registry", 1),
    ("docs/cluster.md", "needs a member that was away for a month", 1),
    ("docs/kubernetes.md", "needs Docker", 5),
    ("docs/kubernetes.md", "needs Apache RocketMQ", 3),
    ("docs/kubernetes.md", "needs a machine that is lost", 1),
    ("docs/operator.md", "needs a package registry", 1),
    ("docs/install.md", "needs a package registry", 4),
    ("docs/install.md", "needs systemd", 1),
    ("docs/install.md", "needs Docker", 1),
    ("docs/install.md", "needs a Kubernetes cluster", 1),
    ("docs/migrate-from-rocketmq.md", "needs Apache RocketMQ", 1),
    ("docs/pipeline.md", "needs a package registry", 1),
    ("docs/lake.md", "needs PySpark 4.1, Iceberg's jar and a live broker", 1),
    ("docs/lake.md", "needs PySpark 4.1 and Iceberg's jar", 3),
    ("docs/lake.md", "needs pyiceberg", 1),
    ("docs/pipeline.md", "needs DuckDB", 1),
    ("docs/pipeline.md", "needs a Spark cluster", 1),
    ("docs/pipeline.md", "needs a server of Spark Connect", 1),
    ("docs/pipeline.md", "needs Apache RocketMQ", 1),
    ("docs/rocketmq.md", "needs Apache RocketMQ", 1),
    ("docs/scaling.md", "needs systemd", 1),
    ("docs/spark-on-kubernetes.md", "needs Docker", 1),
    ("docs/spark-recipes.md", "needs a table format with MERGE", 1),
    ("docs/spark-on-kubernetes.md", "needs Docker and a Kubernetes cluster", 1),
)
"""All blocks that are not run. Their `quarry` commands are held against the command line all the same."""

SLOW: Final = frozenset(
    {
        "docs/backup.md",
        "docs/commands.md",
        "docs/configure.md",
        "docs/console.md",
        "docs/follow-rocketmq.md",
        "docs/index.md",
        "docs/install.md",
        "docs/migrate-from-rocketmq.md",
        "docs/migrate-from-rocketmq-clients.md",
        "docs/migration.md",
        "docs/ping-and-bench.md",
        "docs/pipeline.md",
        "docs/quick-reference.md",
        "docs/replicas.md",
        "docs/runbook.md",
        "docs/scaling.md",
        "docs/security.md",
        "docs/spark-recipes.md",
        "docs/tls.md",
        "docs/top.md",
        "docs/tour.md",
    }
)
"""Pages that take more than some seconds."""

PLAYED: Final = tuple(
    page for page in PAGES if any(each.language == "console" and each.is_run for each in blocks(page))
)


def prepared(page: Path, folder: Path) -> None:
    """Puts into the folder of a page what its reader has before the first line."""
    if page in (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "install.md"):
        # a checkout in which `make` has installed everything already
        (folder / ".venv" / "bin").mkdir(parents=True)
        for name in ("quarry", "python"):
            (folder / ".venv" / "bin" / name).symlink_to(folder.parent / f"{folder.name}-commands" / name)
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy2(ROOT / name, folder)
        for name in (".installed", ".installed-dev", ".installed-docs"):
            (folder / ".venv" / name).touch()


def yours(page: Path, folder: Path) -> Mapping[str, str]:
    """Return the values that pages ask their reader to put in."""
    if page.name == "migrate-from-rocketmq.md":
        return {"ROCKETMQ_STORE": str(golden.unpack("file-clean", folder.parent / "rocketmq") / "store")}
    return {}
