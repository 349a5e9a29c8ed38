"""The objects in deploy/kubernetes, read as Kubernetes would."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "quarry"
VARIANTS: Final = sorted(path.stem for path in (DEPLOY / "helm" / "variants").glob("*.yaml"))
HOST_IP: Final = "192.0.2.17"

Object = dict[str, Any]


class Manifests:
    """The objects of one variant."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [each for each in yaml.safe_load_all(text) if each is not None]

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def only(self, kind: str) -> Object:
        (found,) = self.all(kind)
        return found

    def named(self, kind: str, name: str) -> Object:
        (found,) = (each for each in self.all(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def shards(self) -> Object:
        """The stateful set of the shards, which is the first one: their copies have another one."""
        return self.all("StatefulSet")[0]

    @property
    def has_copies(self) -> bool:
        return len(self.all("StatefulSet")) > 1

    @property
    def pod(self) -> Object:
        """The broker's pod, as its template says."""
        template: Object = self.shards["spec"]["template"]
        return template

    @property
    def broker(self) -> Object:
        return self.container("broker")

    def container(self, name: str) -> Object:
        """Return the container of the broker's pod with this name."""
        (found,) = (each for each in self.pod["spec"]["containers"] if each["name"] == name)
        return dict(found)

    @property
    def pod_names(self) -> list[str]:
        return pod_names(self.shards)

    @property
    def ports(self) -> dict[str, int]:
        return {each["name"]: each["containerPort"] for each in self.broker["ports"]}

    @property
    def toml(self) -> str:
        (found,) = (each["data"] for each in self.all("ConfigMap") if "quarry.toml" in each["data"])
        return str(found["quarry.toml"])

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return tomllib.loads(self.toml)

    @property
    def toml_of_one(self) -> str:
        """Return the settings for a broker that is no member of a cluster."""
        return re.sub(r"^\[cluster\]\n(\w.*\n)*", "", self.toml, flags=re.MULTILINE)

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment of the broker of this pod in Kubernetes; `$(NAME)` stands for what came before."""
        labels = {"apps.kubernetes.io/pod-index": str(index)}
        fields = {"metadata.name": self.pod_names[index], "status.hostIP": HOST_IP}
        fields |= {f"metadata.labels['{name}']": value for name, value in labels.items()}
        found: dict[str, str] = {}
        for each in self.broker["env"]:
            if "valueFrom" in each:
                found[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
        return found

    def pod_templates(self) -> Iterator[Object]:
        """Return the templates of everything that makes pods."""
        for each in (*self.all("StatefulSet"), *self.all("Deployment")):
            yield each["spec"]["template"]
        for each in self.all("CronJob"):
            yield each["spec"]["jobTemplate"]["spec"]["template"]

    def containers(self) -> Iterator[tuple[Object, Object]]:
        """Each with its pod."""
        for template in self.pod_templates():
            pod = template["spec"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield pod, container


@cache
def manifests(variant: str) -> Manifests:
    return Manifests((DEPLOY / "kubernetes" / f"{variant}.yaml").read_text(encoding="utf-8"))


def pod_names(stateful_set: Object) -> list[str]:
    return [f"{stateful_set['metadata']['name']}-{index}" for index in range(stateful_set["spec"]["replicas"])]


def mount_of(container: Object, path: str) -> Object:
    """The innermost mount below which a path lies."""
    found = [each for each in container["volumeMounts"] if Path(path).is_relative_to(each["mountPath"])]
    assert found, f"{path} lies in no volume of {container['name']}"
    return dict(max(found, key=lambda each: len(each["mountPath"])))


def selects(selector: dict[str, str], template: Object, **more: str) -> bool:
    labels = {**template["metadata"]["labels"], **more}
    return selector.items() <= labels.items()
