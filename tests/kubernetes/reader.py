"""Types on the laptop of the cluster what a page says, unchanged and in its order."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.cli.spark_runner import SPARK_HOME
from tests.deploy.manifests import ROOT
from tests.documents.outputs import Bindings, matches
from tests.documents.pages import Block, blocks, commands
from tests.kubernetes.cluster import LAPTOP, Cluster
from tests.kubernetes.images import QUARRY, RCLONE, SPARK
from tests.kubernetes.programs import program

TIMEOUT_S: Final = 1_200

HERE: Final = {
    # images that no registry brings
    "  repository: quarry": f"  repository: {QUARRY.rpartition(':')[0]}\n  tag: {QUARRY.rpartition(':')[2]}",
    "  destination: store:": f"  rcloneImage: {RCLONE}\n  destination: store:",
    "image: rclone/rclone:1.75.1@sha256:45401ad7410db1d67ffdb58e19059ad20b0d8e0285a60e38bbec55cc1019c7a5": (
        f"image: {RCLONE}"
    ),
    "quarry-spark:0.1.0": SPARK,
    # what is uploaded is a whole segment
    "settings:\n": "settings:\n  store:\n    segment_size: 64MiB\n",
    "spark.executor.cores                                       2": """
# two jobs at once on two machines with two cores
spark.executor.cores 1
spark.kubernetes.driver.request.cores 100m
spark.kubernetes.executor.request.cores 800m
spark.sql.shuffle.partitions 4
# Debian's etcd does not offer the watch by which spark-submit sees the end of the driver
spark.kubernetes.submission.waitAppCompletion false
""",
}
"""Texts of files on the pages and in `MANIFESTS`, and what stands in their place here."""

MANIFESTS: Final = ("deploy/spark/export-job.yaml", "deploy/spark/spark.properties")

_OWN: Final = re.compile(r"^(\w+)=(\S*)( +# put your .*)$")
_HEADING: Final = re.compile(r"^#{2,3} (.*)$")


class Reader:
    """Types what a page says, on the laptop and in the top folder of the project."""

    def __init__(self, cluster: Cluster, folder: Path, own: dict[str, str]) -> None:
        self._cluster = cluster
        self._own = own
        """Values of the variables that readers of a page set for themselves, by name."""
        self._variables: list[str] = []
        self.folder = folder
        self.bindings = Bindings()
        programs = folder / "programs"
        programs.mkdir()
        words = {
            "kubectl": f"{program('kube')} kubectl",
            "helm": str(program("helm")),
            "quarry": f"{sys.executable} -m quarry_mq.cli.main",
            # the laptop has no name of its own that DNS knows
            "spark-submit": f"env SPARK_HOME={SPARK_HOME} SPARK_LOCAL_IP={LAPTOP} {SPARK_HOME}/bin/spark-submit",
        }
        for name, command in words.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        for file in MANIFESTS:
            (folder / file).write_text(_replaced((ROOT / file).read_text()))
        self._environment = {
            "HOME": str(folder),
            "KUBECONFIG": str(cluster.access),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def follow(self, page: Path, *headings: str) -> dict[str, str]:
        """Do what sections of a page say. Return the commands with their outputs."""
        found = sections(page)
        outputs: dict[str, str] = {}
        for heading in headings:
            for block in found[heading]:
                if "file" in block.orders or "added" in block.orders:
                    self._write(block)
                elif "elsewhere" in block.orders:
                    outputs |= self._type(block)
        return outputs

    def _write(self, block: Block) -> None:
        name = block.orders.get("file") or block.orders["added"]
        with (self.folder / name).open("w" if "file" in block.orders else "a") as file:
            file.write(_replaced(block.text))

    def _type(self, block: Block) -> dict[str, str]:
        outputs = {}
        for command in commands(block):
            own = _OWN.match(command.typed)
            if own is not None:
                self._variables.append(f"{own[1]}={self._own[own[1]]}")
                continue
            typed = self.bindings.put_into(command.typed)
            print(f"$ {typed}")
            output = self.run(typed)
            print(output)
            if command.output:
                said = output.splitlines()
                assert matches(command.output, said, self.bindings), f"{block.place}: {command.typed}\n{output}"
            outputs[command.typed] = output
        return outputs

    def run(self, typed: str) -> str:
        """Return both outputs of a command. Raises Failed, if it fails."""
        script = "\n".join([f"cd {self.folder}", "exec 2>&1", "set -o pipefail", *self._variables, typed])
        return self._cluster.within.run(
            "bash", "-ec", script, network="laptop", timeout_s=TIMEOUT_S, environment=self._environment
        )


def _replaced(text: str) -> str:
    for theirs, here in HERE.items():
        text = text.replace(theirs, here)
    return text


def sections(page: Path) -> dict[str, list[Block]]:
    """Return the blocks of each section of a page."""
    found: dict[str, list[Block]] = {}
    left = list(blocks(page))
    heading = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if (said := _HEADING.match(line)) is not None:
            heading = said[1]
        while left and left[0].line == number:
            found.setdefault(heading, []).append(left.pop(0))
    return found
