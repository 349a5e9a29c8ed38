"""A release of the chart, and clients that send to it and receive from it while something happens."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import trustme
import yaml

from tests.deploy.manifests import CHART
from tests.kubernetes.cluster import CLIENTS, READY_TIMEOUT_S, Cluster, Object
from tests.kubernetes.images import QUARRY
from tests.kubernetes.namespaces import Failed, wait_until
from tests.kubernetes.programs import program

HERE: Final = Path(__file__).parent
NAME: Final = "quarry"
FLOW_TIMEOUT_S: Final = 300.0
PAUSE_MAX_S: Final = 1.0
"""Seconds for which a planned change may stop a producer of messages without a group."""

AUTHORITY: Final = "/tmp/authority.pem"

SMALL: Final[Object] = {
    "image": {"repository": QUARRY.rpartition(":")[0], "tag": QUARRY.rpartition(":")[2], "pullPolicy": "Never"},
    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    "security": {"openAdmin": True},
    "store": {"size": "1Gi"},
    "settings": {"store": {"segment_size": "64MiB"}},
}
"""Values for a machine that is small."""


class Result(NamedTuple):
    """Counts of what became of the messages of a client. `longest_pause_s` is the time without an acknowledged send."""

    client: str
    acknowledged: int
    refused: int
    lost: int
    duplicated: int
    disordered: int
    longest_pause_s: float
    slowest_send_s: float
    missing: list[str]
    errors: dict[str, int]


class Client(NamedTuple):
    """A way to run a client. `python` is that of RocketMQ 5 (gRPC), `go` that of RocketMQ 4 (remoting)."""

    name: str
    program: tuple[str, ...]
    topic: str
    message_groups: int = 0

    @property
    def consumer_group(self) -> str:
        return f"{self.topic}-readers"


PYTHON: Final = ("python", "/flow/flow.py")
GRPC: Final = Client("gRPC", PYTHON, "orders")
GROUPS: Final = Client("gRPC, message groups", PYTHON, "accounts", message_groups=8)
REMOTING: Final = Client("remoting", ("/flow/flow",), "letters")
CLIENTS_OF_A_CASE: Final = (GRPC, GROUPS, REMOTING)


class Flow:
    """A client that runs until `end`."""

    def __init__(self, client: Client, process: subprocess.Popen[str]) -> None:
        self._client = client
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith('{"started"'):
            process.kill()
            raise Failed(f"{client.name} does not start: {line}{process.communicate()[1][-4000:]}")

    def stop(self) -> None:
        """Stop sending."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None

    def end(self) -> Result:
        """Wait until all is received, and return what became of it."""
        output, errors = self._process.communicate(timeout=FLOW_TIMEOUT_S)
        if self._process.returncode or not output.strip():
            raise Failed(f"{self._client.name} ended with {self._process.returncode}: {output}{errors[-4000:]}")
        return Result(self._client.name, **json.loads(output.splitlines()[-1]))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Release:
    """An installation of the chart in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.replicas = 1
        self._values: Object = {}
        self._file = cluster.folder / f"{namespace}.yaml"

    @property
    def pods(self) -> list[str]:
        return [f"{NAME}-{index}" for index in range(self.replicas)]

    @property
    def endpoint(self) -> str:
        """Return the address at which clients in the cluster begin."""
        return f"{NAME}.{self.namespace}.svc.cluster.local:8081"

    def install(
        self, values: Mapping[str, Any] = MappingProxyType({}), *, chart: Path = CHART, is_complete: bool = True
    ) -> None:
        """Install the chart, or upgrade to other values of it or to another one.

        It waits until all pods are ready, unless that is not to be expected: `is_complete=False`.
        """
        self._values = merged(SMALL, values)
        self.replicas = int(self._values.get("replicas", 1))
        self._file.write_text(yaml.safe_dump(self._values))
        where = ("--namespace", self.namespace, "--values", self._file)
        self.cluster.helm("upgrade", "--install", NAME, chart, *where)
        if is_complete:
            self.wait_until_rolled_out()

    def change(self, values: Mapping[str, Any]) -> None:
        """Upgrade to the values that the release has, with these changes."""
        self.install(merged(self._values, values))

    def wait_until_rolled_out(self, timeout_s: float = 600) -> None:
        """Wait until all pods are those of the last template, and ready."""
        words = ("rollout", "status", f"statefulset/{NAME}", f"--timeout={timeout_s:.0f}s")
        try:
            self.cluster.kubectl(*words, "--namespace", self.namespace, timeout_s=timeout_s + 60)
        except Failed as late:
            said = self.cluster.kubectl("get", "pods,events", "--namespace", self.namespace, "--output=wide")
            raise Failed(f"{late}\n{said[-8000:]}") from late
        self.cluster.wait_for_pods(self.namespace, *self.pods)

    def quarry(self, *words: str, pod: str = f"{NAME}-0") -> str:
        """Return the output of a command of the broker's own pod. Raises Failed."""
        return self.cluster.exec(pod, "quarry", *words, namespace=self.namespace, container="broker")

    def members(self, pod: str = f"{NAME}-0") -> list[Object]:
        """Return the members of the cluster as one of them sees them."""
        return [json.loads(line) for line in self.quarry("cluster", "members", "--json", pod=pod).splitlines()]

    def wait_for_members(self, count: int) -> None:
        """Wait until so many members are reachable."""
        wait_until(lambda: self._reachable() == count, f"{count} members are reachable", READY_TIMEOUT_S)

    def _reachable(self) -> int:
        try:
            return sum(bool(each["reachable"]) for each in self.members())
        except Failed:
            return 0

    def is_reachable(self, member: str, asked: str = f"{NAME}-0") -> bool:
        """Return whether a member reaches another one."""
        return any(each["name"] == member and each["reachable"] for each in self.members(asked))

    def unread(self, pod: str) -> int:
        """Count the messages of a member that the clients' consumer groups have not acknowledged."""
        found = 0
        for client in CLIENTS_OF_A_CASE:
            try:
                said = self.quarry("lag", client.consumer_group, "--topic", client.topic, "--json", pod=pod)
            except Failed as reason:
                if "has never read topic" not in str(reason):
                    raise
                found += self._stored(client.topic, pod)
            else:
                found += sum(json.loads(line)["messages"] for line in said.splitlines())
        return found

    def _stored(self, topic: str, pod: str) -> int:
        """Count the messages that a broker has of a topic."""
        queues = json.loads(self.quarry("topic", "show", topic, "--json", pod=pod))["queues"]
        return sum(each["maxOffset"] - each["minOffset"] for each in queues)

    def setting(self, key: str) -> str:
        """Return the value of a setting that can be changed while the broker runs."""
        return str(json.loads(self.quarry("settings", "get", key, "--json"))["value"])

    def restart(self) -> None:
        """Restart all pods as `kubectl rollout restart` does, and wait until the last one is ready."""
        self.cluster.kubectl("rollout", "restart", f"statefulset/{NAME}", "--namespace", self.namespace)
        self.wait_until_rolled_out()

    def topics(self, pod: str) -> list[str]:
        """Return the topics that a broker has."""
        return [json.loads(line)["name"] for line in self.quarry("topic", "list", "--json", pod=pod).splitlines()]

    def messages(self, topic: str, pod: str = f"{NAME}-0") -> dict[str, str]:
        """Return the bodies of the messages that a broker has of a topic, by their ids."""
        lines = self.quarry("browse", topic, "--json", "--limit", "10000", pod=pod).splitlines()
        return {each["messageId"]: each["body"] for each in map(json.loads, lines)}

    def run_job(self, source: str, name: str) -> None:
        """Run a job of a CronJob now, and wait until it is complete. Raises Failed, with what the job said."""
        self.cluster.kubectl("create", "job", name, f"--from={source}", "--namespace", self.namespace)
        self.wait_for_job(name)

    def wait_for_job(self, name: str) -> None:
        """Wait until a job is complete. Raises Failed, with what the job said."""
        where = ("--namespace", self.namespace)
        try:
            words = ("wait", f"job/{name}", "--for=condition=Complete", "--timeout=180s")
            self.cluster.kubectl(*words, *where, timeout_s=240)
        except Failed as late:
            said = self.cluster.kubectl("logs", f"job/{name}", "--all-containers", "--tail=40", *where)
            raise Failed(f"{late}\n{said}") from late

    def address_of(self, pod: str) -> str:
        """Return the IP address of a pod."""
        return str(self.cluster.get("pod", pod, self.namespace)["status"]["podIP"])

    def create_topics(self) -> None:
        """Create the topics and consumer groups of the clients."""
        for client in CLIENTS_OF_A_CASE:
            kind = "fifo" if client.message_groups else "normal"
            self.quarry("topic", "create", client.topic, "--type", kind, "--queues", "8")
            self.quarry("group", "create", client.consumer_group, "--fifo" if client.message_groups else "--no-fifo")

    def secret(self, name: str, entries: Mapping[str, str]) -> None:
        """Create a Secret, or change it."""
        metadata = {"name": name, "namespace": self.namespace}
        self.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(entries)})

    def read_secret(self, name: str) -> dict[str, str]:
        """Return the entries of a Secret."""
        entries = self.cluster.get("secret", name, self.namespace)["data"]
        return {each: b64decode(value).decode() for each, value in entries.items()}

    def certificate(self, authority: trustme.CA, *more: str) -> str:
        """Put a new certificate for the names of the documentation into the Secret. Return the certificate."""
        domain = f"{self.namespace}.svc.cluster.local"
        names = (f"*.{domain}", f"*.{NAME}-headless.{domain}", "localhost", *more)
        issued = authority.issue_cert(*names)
        certificate = issued.cert_chain_pems[0].bytes().decode()
        entries = {
            "tls.crt": certificate,
            "tls.key": issued.private_key_pem.bytes().decode(),
            "ca.crt": authority.cert_pem.bytes().decode(),
        }
        self.secret("quarry-tls", entries)
        return certificate

    def shown_certificate(self, pod: str) -> str:
        """Return the certificate that a broker shows to clients."""
        address = (f"{pod}.{NAME}-headless.{self.namespace}.svc.cluster.local", 8081)
        program = f"import ssl; print(ssl.get_server_certificate({address!r}, timeout=20))"
        return self.cluster.exec("client-node1", "python", "-c", program, namespace=CLIENTS)

    def start_of(self, pod: str) -> tuple[str, str]:
        """Return what differs after each start of a pod or of its broker."""
        found = self.cluster.get("pod", pod, self.namespace)
        (status,) = found["status"]["containerStatuses"]
        return found["metadata"]["uid"], status["containerID"]

    def delete_pod(self, pod: str) -> None:
        """Delete a pod and wait until its successor is ready."""
        self.cluster.kubectl("delete", "pod", pod, "--namespace", self.namespace)
        self.cluster.wait_for_pods(self.namespace, pod)

    def node_of(self, pod: str) -> str:
        return str(self.cluster.get("pod", pod, self.namespace)["spec"]["nodeName"])

    @contextmanager
    def flows_outside(
        self,
        endpoint: str,
        *,
        rate: float = 10,
        clients: Sequence[Client] = CLIENTS_OF_A_CASE,
        authority: trustme.CA | None = None,
    ) -> Iterator[list[Result]]:
        """Let clients on the laptop send to an address and receive while the block runs, as `flows` does in pods."""
        environment = {}
        if authority is not None:
            file = self.cluster.folder / "authority.pem"
            authority.cert_pem.write_to_path(file)
            environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(file)
        here = {GRPC.program: (sys.executable, str(HERE / "flow.py")), REMOTING.program: (str(program("flow")),)}
        processes = []
        for client in clients:
            words = [*here[client.program], *arguments(client, endpoint, rate), *(["--tls"] if authority else [])]
            processes.append((client, self.cluster.started_outside(*words, environment=environment)))
        with _running(processes) as results:
            yield results

    @contextmanager
    def flows(
        self,
        *,
        node: int = 2,
        rate: float = 10,
        clients: Sequence[Client] = CLIENTS_OF_A_CASE,
        authority: trustme.CA | None = None,
    ) -> Iterator[list[Result]]:
        """Let clients on a node send and receive while the block runs. The list has their results after it.

        With `authority` they use TLS, and accept certificates of this authority alone.
        """
        pod = f"client-node{node}"
        tls = []
        if authority is not None:
            tls = ["env", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={AUTHORITY}"]
            text = authority.cert_pem.bytes().decode()
            self.cluster.exec(pod, "sh", "-c", f"cat > {AUTHORITY}", namespace=CLIENTS, text=text)
        processes = []
        for client in clients:
            words = [*tls, *client.program, *arguments(client, self.endpoint, rate), *(["--tls"] if tls else [])]
            processes.append((client, self.cluster.started_in(pod, *words, namespace=CLIENTS)))
        with _running(processes) as results:
            yield results


@contextmanager
def some_shards(cluster: Cluster, namespace: str, count: int) -> Iterator[Release]:
    """Install shards with their topics in a namespace of their own, for the tests of a module."""
    with cluster.namespace(namespace):
        made = Release(cluster, namespace)
        made.secret("quarry-cluster", {"cluster.key": new_key()})
        made.install({"replicas": count})
        made.create_topics()
        yield made


@contextmanager
def _running(processes: Sequence[tuple[Client, subprocess.Popen[str]]]) -> Iterator[list[Result]]:
    results: list[Result] = []
    with ExitStack() as stack:
        flows = []
        for client, process in processes:
            flow = Flow(client, process)
            stack.callback(flow.kill)
            flows.append(flow)
        time.sleep(1)  # something is sent before anything happens
        yield results
        for flow in flows:
            flow.stop()
        results += [flow.end() for flow in flows]


def arguments(client: Client, endpoint: str, rate: float) -> list[str]:
    """Return the arguments of the program of a client."""
    words = [f"--endpoint={endpoint}", f"--topic={client.topic}", f"--group={client.consumer_group}", f"--rate={rate}"]
    return [*words, *([f"--message-groups={client.message_groups}"] if client.message_groups else [])]


def pause_max_s() -> float:
    """Return the longest pause that is allowed: in proportion where programs wait for a processor."""
    return PAUSE_MAX_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def nothing_is_lost(results: Sequence[Result]) -> None:
    """Raises AssertionError."""
    assert all(each.acknowledged for each in results), results
    assert not any(each.lost or each.disordered for each in results), results


def no_producer_stops(results: Sequence[Result]) -> None:
    """Messages without a group are always accepted by some member. Raises AssertionError.

    Only the client of RocketMQ 5 is held to it: that of RocketMQ 4 stops all sends while it dials one address.
    """
    nothing_is_lost(results)
    (free,) = (each for each in results if each.client == GRPC.name)
    assert free.longest_pause_s <= pause_max_s(), results
    # retries of this client take the next queue, whatever failed before: a few sends meet the same member three times
    assert free.refused <= free.acknowledged / 20, results


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Object:
    """Return values with changes, as Helm merges them: deep."""
    found = dict(values)
    for name, value in changes.items():
        is_deep = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if is_deep else value
    return found


def new_key() -> str:
    """Return a key as `quarry security new-key` writes it."""
    return b64encode(secrets.token_bytes(32)).decode() + "\n"
