"""Tests that type docs/kubernetes.md and docs/operator.md into a cluster, unchanged and in its order.

Blocks that need more than a cluster are marked `not run` on the pages, with the reason, and are counted in
tests/documents/table.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.manifests import ROOT
from tests.documents.pages import Block, blocks
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.namespaces import Failed
from tests.kubernetes.reader import Reader, sections

PAGE: Final = ROOT / "docs" / "kubernetes.md"
OPERATOR: Final = ROOT / "docs" / "operator.md"
NAMESPACE: Final = "quarry"
SHARDS: Final = ("quarry-0", "quarry-1", "quarry-2")


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path, object_store: str) -> Iterator[Reader]:
    own = {"ENDPOINT": object_store, "ACCESS_KEY_ID": "example", "SECRET_ACCESS_KEY": "example"}
    with cluster.namespace(NAMESPACE):
        yield Reader(cluster, tmp_path, own)


def bodies(reader: Reader, pods: Sequence[str]) -> list[str]:
    """Return the bodies of all messages of the topic of the page."""
    found = []
    for pod in pods:
        # it ends with status 1 if there are no messages
        browse = f"kubectl exec {pod} --namespace quarry -- quarry browse orders --json 2>/dev/null || test $? = 1"
        lines = reader.run(browse)
        found += [json.loads(line)["body"] for line in lines.splitlines()]
    return found


def test_from_nothing_to_three_shards_with_copies_and_backups(reader: Reader) -> None:
    reader.follow(PAGE, "3. One broker")
    assert bodies(reader, ["quarry-0"]) == ["hello"]
    said = reader.follow(PAGE, "4. Three shards")
    members = next(output for typed, output in said.items() if typed.endswith("quarry cluster members"))
    assert all(shard in members for shard in SHARDS)
    reader.follow(PAGE, "5. A copy of each shard on another machine", "6. Backups in an object store")
    reader.run("kubectl exec quarry-0 --namespace quarry -- quarry produce orders later --count 30")
    assert sorted(bodies(reader, SHARDS)) == ["hello", *["later"] * 30]
    reader.follow(PAGE, "7. Restore")
    assert bodies(reader, SHARDS) == ["hello"]
    restore_an_older_backup(reader)
    reader.follow(PAGE, "8. Remove everything")
    with pytest.raises(Failed, match="not found"):
        reader.run("kubectl get namespace quarry")


def restore_an_older_backup(reader: Reader) -> None:
    """Type the block of the page that names a backup."""
    name = re.search(r"\d{8}T\d{6}\.\d{3}Z", reader.run("kubectl logs job/backup-0 --container backup -n quarry"))
    assert name is not None
    (block,) = (each for each in sections(PAGE)["Restore"] if "elsewhere" in each.orders)
    (shown,) = re.findall(r"BACKUP=(\S+)", block.text)
    reader.bindings.bind(shown, name[0])
    reader.run("kubectl scale deployment/quarry-operator statefulset/quarry --replicas 0 --namespace quarry")
    reader.follow(PAGE, "Restore")
    reader.run("kubectl wait job/restore-older --for condition=Complete --timeout 5m --namespace quarry")
    assert name[0] in reader.run("kubectl logs job/restore-older --all-containers --namespace quarry")


def test_users_and_custom_resources(reader: Reader) -> None:
    reader.follow(PAGE, "Secrets", "3. One broker")
    said = reader.follow(PAGE, "Users")
    assert any("quarry user create" in typed and "admin" in output for typed, output in said.items())
    # the next page declares a topic of this name with other settings
    reader.run("kubectl exec quarry-0 --namespace quarry -- quarry topic delete orders --yes")
    reader.follow(OPERATOR, "Install it", "Topics")
    for block in declared(OPERATOR):
        (reader.folder / "declared.yaml").write_text(block.text)
        reader.run("kubectl apply --namespace quarry --filename declared.yaml")
    ready = "kubectl wait {} --for condition=Ready --namespace quarry --timeout 2m"
    for name in ("topic/audit-log", "topic/trial", "consumergroup/billing", "user/billing"):
        reader.run(ready.format(name))
    reader.run(ready.format("accessrule/billing-orders accessrule/billing-group"))
    reader.follow(OPERATOR, "Shards", "What the status says")
    # by the operator, which is gone when the namespace is deleted
    reader.run("kubectl delete accessrules,users,topics --all --namespace quarry --timeout 2m")


def declared(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page with custom resources."""
    for block in blocks(page):
        if block.language == "yaml" and block.text.startswith("apiVersion: mq.quarry.io/"):
            yield block


def test_every_block_of_the_pages_for_a_cluster_is_in_a_section_that_is_typed() -> None:
    """The sections are named above, so a new one must be added there."""
    source = Path(__file__).read_text()
    for page in (PAGE, OPERATOR):
        for heading, found in sections(page).items():
            if any("elsewhere" in block.orders for block in found):
                assert f'"{heading}"' in source, heading
