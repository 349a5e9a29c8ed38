"""Reads and writes objects of Kubernetes in one namespace, by lightkube."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import httpx
from httpx_ws import HTTPXWSException
from lightkube import AsyncClient
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.models.core_v1 import ContainerState, ContainerStatus, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet, StatefulSetScale
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.core_v1 import Secret as SecretObject
from lightkube.resources.events_v1 import Event
from lightkube.types import PatchType
from yaml import YAMLError

from quarry_mq.cli.operator.resources import FINALIZER, GROUP, MESSAGE_MAX, VERSION, Kind, Note, Resource

MANAGER: Final = "quarry-operator"
ROLE_LABEL: Final = f"{GROUP}/role"
"""The label of the pods with a broker, by which Services find the primary of a shard."""

PAGE: Final = 500
"""Objects of one answer to a list."""

_NOT_FOUND: Final = 404
_KILLED: Final = 128
"""The exit status from which on a signal has ended a process."""


class KubernetesFailed(Exception):
    """A call to Kubernetes failed. The text is one line."""


class ObjectGone(KubernetesFailed):
    """The object does not exist any more."""


class Pod(NamedTuple):
    """A pod with a broker."""

    name: str
    address: str
    """The address in the network of the cluster is empty until the pod has one."""
    role: str
    """The role is what the label of the pod says, and empty without the label."""


class Container(NamedTuple):
    """A container of a pod."""

    is_ready: bool
    waits_for: str
    """The reason why it does not run now, in one word; empty if it runs."""
    failed_at_ms: int
    """The time when it last ended with an error; 0 if it never did."""
    failure: str
    """The last line that it had printed then."""


class Secret(NamedTuple):
    """A Secret of Kubernetes with the name and the secret of a user."""

    version: str
    """The resource version: another one after each change."""
    entries: Mapping[str, str]


def connected(namespace: str | None) -> Kubernetes:
    """Connect as the pod, or as KUBECONFIG or ~/.kube/config says. Raises KubernetesFailed."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    try:
        return Kubernetes(AsyncClient(namespace=namespace, field_manager=MANAGER))
    except (ConfigError, OSError) as error:
        raise KubernetesFailed(f"Kubernetes cannot be reached: {error}") from error
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, YAMLError) as error:
        file = os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG)
        raise KubernetesFailed(f"{file}: not a configuration for kubectl: {' '.join(str(error).split())}") from error


class Kubernetes:
    """The objects of one namespace. Calls raise KubernetesFailed."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @property
    def namespace(self) -> str:
        return str(self._client.namespace)

    async def close(self) -> None:
        await self._client.close()

    async def list(self, kind: Kind) -> tuple[str, list[Resource]]:
        """Return all resources of a kind, and the version from which `watch` continues."""
        listing = self._client.list(_class_of(kind), chunk_size=PAGE)
        try:
            with _calling():
                found = [Resource(kind, dict(each)) async for each in listing]
        except ObjectGone as error:
            text = f"the custom resource definition {kind.plural}.{GROUP} is not installed"
            raise KubernetesFailed(text) from error
        return str(listing.resourceVersion), found

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[tuple[str, Resource]]:
        """Yield the changes since a version: `ADDED`, `MODIFIED` or `DELETED` and the resource, without an end."""
        changes = self._client.watch(_class_of(kind), resource_version=version)
        with _calling():
            async for change, found in changes:
                yield change, Resource(kind, dict(found))

    async def declare(self, kind: Kind, name: str, spec: Mapping[str, Any]) -> None:
        """Create a resource, or change its specification to this one."""
        target = _class_of(kind)
        made = target(metadata=ObjectMeta(name=name), spec=dict(spec), apiVersion=f"{GROUP}/{VERSION}", kind=kind.name)
        with _calling():
            await self._client.apply(made, force=True)

    async def write_status(self, resource: Resource, change: Mapping[str, Any]) -> Resource:
        """Change the status of a resource by a merge patch, and return the resource."""
        return await self._patched(resource, _class_of(resource.kind).Status, change)

    async def set_finalizer(self, resource: Resource, *, wanted: bool) -> Resource:
        """Add the operator's finalizer to a resource, or remove it; return the resource.

        Fails if somebody else has changed the resource: the finalizers of others must not be lost.
        """
        if (FINALIZER in resource.finalizers) == wanted:
            return resource
        finalizers = [each for each in resource.finalizers if each != FINALIZER] + [FINALIZER] * wanted
        metadata = {"finalizers": finalizers, "resourceVersion": resource.version}
        return await self._patched(resource, _class_of(resource.kind), {"metadata": metadata})

    async def _patched(self, resource: Resource, target: Any, change: Mapping[str, Any]) -> Resource:
        with _calling():
            found = await self._client.patch(target, resource.name, dict(change), patch_type=PatchType.MERGE)
        return Resource(resource.kind, dict(found))

    async def note(self, resource: Resource, note: Note) -> None:
        """Write an event about a resource."""
        event = Event(
            metadata=ObjectMeta(generateName=f"{resource.name[:200]}-"),
            eventTime=datetime.now(UTC),
            action="Reconcile",
            reason=note.reason,
            note=note.message[:MESSAGE_MAX],
            type="Warning" if note.is_warning else "Normal",
            regarding=ObjectReference(
                apiVersion=f"{GROUP}/{VERSION}",
                kind=resource.kind.name,
                name=resource.name,
                namespace=self.namespace,
                uid=resource.uid,
            ),
            reportingController=f"{GROUP}/{MANAGER}",
            reportingInstance=MANAGER,
        )
        with _calling():
            await self._client.create(event)

    async def secret(self, name: str) -> Secret | None:
        """Return a Secret, or None if there is none of this name."""
        try:
            with _calling():
                found = await self._client.get(SecretObject, name)
        except ObjectGone:
            return None
        return _secret(found)

    async def create_secret(self, name: str, entries: Mapping[str, str], labels: Mapping[str, str]) -> Secret:
        """Create a Secret, and return it."""
        made = SecretObject(
            metadata=ObjectMeta(name=name, labels=dict(labels)), stringData=dict(entries), type="Opaque"
        )
        with _calling():
            return _secret(await self._client.create(made))

    # -- pods

    async def pods(self, labels: Mapping[str, str]) -> Sequence[Pod]:
        """Return the pods that have these labels."""
        with _calling():
            return [_pod(each) async for each in self._client.list(PodObject, labels=dict(labels))]

    async def label_pod(self, name: str, role: str) -> None:
        """Set the label of a pod that says its role."""
        change = {"metadata": {"labels": {ROLE_LABEL: role}}}
        with _calling():
            await self._client.patch(PodObject, name, change, patch_type=PatchType.MERGE)

    async def run(self, pod: str, command: Sequence[str], *, timeout_s: float) -> tuple[bool, str]:
        """Run a command in the broker's container of a pod; return whether it succeeded, and what it printed."""
        try:
            done = await self._client.exec(
                pod, container="broker", command=command, stdout=True, stderr=True, timeout=timeout_s
            )
        except (httpx.HTTPError, OSError, TimeoutError, HTTPXWSException) as error:
            return False, " ".join(str(error).split()) or type(error).__name__
        words = [word for each in (done.stdout, done.stderr) for word in str(each or "").split()]
        return done.exit_code == 0, " ".join(words)

    async def containers(self, pod: str) -> Mapping[str, Container]:
        """Return the containers of a pod by their names; none if the pod does not exist."""
        try:
            with _calling():
                found = await self._client.get(PodObject, pod)
        except ObjectGone:
            return {}
        statuses = None if found.status is None else found.status.containerStatuses
        return {each.name: _container(each) for each in statuses or ()}

    async def replicas(self, stateful_set: str) -> int | None:
        """Return how many pods a stateful set is to have; None if it does not exist."""
        try:
            with _calling():
                found = await self._client.get(StatefulSet, stateful_set)
        except ObjectGone:
            return None
        return int(getattr(found.spec, "replicas", None) or 0)

    async def scale(self, stateful_set: str, replicas: int) -> None:
        """Change how many pods a stateful set is to have."""
        change = {"spec": {"replicas": replicas}}
        with _calling():
            await self._client.patch(StatefulSetScale, stateful_set, change, patch_type=PatchType.MERGE)


@contextmanager
def _calling() -> Iterator[None]:
    """Raise KubernetesFailed for a call in the block that fails."""
    try:
        yield
    except httpx.HTTPError as error:
        raise _failed(error) from error


def _pod(found: PodObject) -> Pod:
    assert found.metadata is not None
    labels: Mapping[str, str] = found.metadata.labels or {}
    address = None if found.status is None else found.status.podIP
    return Pod(str(found.metadata.name), address or "", labels.get(ROLE_LABEL, ""))


def _container(found: ContainerStatus) -> Container:
    now, before = found.state or ContainerState(), found.lastState or ContainerState()
    waits_for = "" if now.running else str((now.waiting and now.waiting.reason) or "Ended")
    ended = now.terminated or before.terminated
    if ended is None or ended.exitCode == 0:
        return Container(found.ready, waits_for, 0, "")
    lines = (ended.message or "").strip().splitlines()
    by_itself = ended.exitCode < _KILLED and lines
    failure = lines[-1] if by_itself else f"it was ended with exit status {ended.exitCode} ({ended.reason or 'Error'})"
    failed_at_ms = int(ended.finishedAt.timestamp() * 1000) if ended.finishedAt else 0
    return Container(found.ready, waits_for, failed_at_ms, failure)


def _secret(found: SecretObject) -> Secret:
    data: Mapping[str, str] = found.data or {}
    entries = {name: base64.b64decode(text).decode("utf-8", "replace") for name, text in data.items()}
    return Secret(str(found.metadata.resourceVersion if found.metadata else ""), entries)


def _class_of(kind: Kind) -> type[GenericNamespacedResource]:
    return create_namespaced_resource(GROUP, VERSION, kind.name, kind.plural)


def _failed(error: httpx.HTTPError) -> KubernetesFailed:
    """Return what a failed call was about, in one line."""
    text, code = " ".join(str(error).split()) or type(error).__name__, 0
    if isinstance(error, ApiError):
        code = int(error.status.code or 0)
    elif isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        text = f"{code} {error.response.reason_phrase}: {error.request.url.path}"
    return ObjectGone(text) if code == _NOT_FOUND else KubernetesFailed(text)
