"""A Kubernetes of two nodes: its control plane, its nodes, and what a test does to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trustme
import yaml

from tests.kubernetes import images, programs
from tests.kubernetes.namespaces import Failed, Namespaces, make_groups, remove_groups, wait_until
from tests.kubernetes.objects import client_pods, containerd_settings, dns, kubelet_settings, pod_network, storage

NODES: Final = (1, 2)
CONTROL_PLANE: Final = "172.30.0.1"
LAPTOP: Final = "172.30.0.100"
SERVICES: Final = "10.96.0.0/16"
PODS: Final = "10.244.0.0/16"
TOKEN: Final = "administrator"
LOST_AFTER_S: Final = 10
"""Seconds that pods stay on a node which does not answer. The default of Kubernetes is 300."""
CLIENTS: Final = "clients"
READY_TIMEOUT_S: Final = 300.0

Object = dict[str, Any]


class Node:
    """A machine of the cluster: a network of its own, a container runtime, a kubelet, a proxy and a firewall."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._within = cluster.within
        self.number = number
        self.name = f"node{number}"
        self.address = f"172.30.0.{10 + number}"
        self.pods = f"10.244.{number}"
        self.folder = cluster.folder / self.name
        self.socket = f"/run/{self.name}/containerd.sock"

    @property
    def group(self) -> str:
        """The control group of the node's pods."""
        return f"{self._cluster.group}/{self.name}"

    def make_network(self) -> None:
        """Connect the node to the network of all machines; pods of other nodes are reached through their nodes."""
        others = [each for each in self._cluster.nodes if each is not self]
        link = f"ip -n {self.name}"
        lines = [
            f"ip netns add {self.name}",
            f"ip link add {self._cable} type veth peer name eth0 netns {self.name}",
            f"ip link set {self._cable} master machines up",
            f"{link} link set lo up; {link} addr add {self.address}/24 dev eth0; {link} link set eth0 up",
            f"{link} route add default via {CONTROL_PLANE}",
            *(f"{link} route add {other.pods}.0/24 via {other.address}" for other in others),
            f"ip route add {self.pods}.0/24 via {self.address}",
            f"mkdir -p {self.folder}/kubelet {self.folder}/network /run/{self.name}",
        ]
        self._within.run("sh", "-ec", "\n".join(lines))
        for setting in ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"):
            self._within.run("sysctl", "-qw", f"{setting}=1", network=self.name)

    @property
    def _cable(self) -> str:
        return f"to-{self.name}"

    def start(self) -> None:
        """Start everything that runs on the node. The images are those of the template."""
        (self.folder / "network" / "pods.conflist").write_text(json.dumps(pod_network(self.pods, self.folder)))
        (self.folder / "containerd.toml").write_text(containerd_settings(self.folder, self.name, self.socket))
        (self.folder / "kubelet.yaml").write_text(
            yaml.safe_dump(kubelet_settings(self.group, self.folder, self.socket))
        )
        make_groups([self.group])
        self.start_runtime()
        self.start_kubelet()
        self._start("kube-proxy", *self._proxy())

    def start_firewall(self) -> None:
        """Start what enforces NetworkPolicies. It needs a node that the cluster knows."""
        self._start(
            "kube-router",
            *(
                programs.program("kube-router"),
                "--run-router=false",
                "--run-firewall=true",
                "--run-service-proxy=false",
            ),
            *("--run-loadbalancer=false", f"--kubeconfig={self._cluster.access}", f"--hostname-override={self.name}"),
            *(f"--service-cluster-ip-range={SERVICES}", "--health-port=0", "--metrics-port=0"),
        )

    def _proxy(self) -> list[str | Path]:
        # 0: the limits of the machine's own connection tracking stay as they are
        kept = ("max-per-core=0", "tcp-timeout-established=0s", "tcp-timeout-close-wait=0s")
        return [
            *(programs.program("kube"), "kube-proxy", f"--kubeconfig={self._cluster.access}", "--proxy-mode=iptables"),
            *(f"--hostname-override={self.name}", f"--cluster-cidr={PODS}", "--healthz-bind-address=127.0.0.1:10256"),
            *(f"--conntrack-{each}" for each in kept),
        ]

    def _start(self, program: str, *words: str | Path) -> None:
        self._within.start(f"{self.name}-{program}", *words, network=self.name)

    def start_runtime(self) -> None:
        self._start("containerd", "containerd", "--config", self.folder / "containerd.toml")
        wait_until(self._runtime_answers, f"containerd of {self.name} answers")

    def _runtime_answers(self) -> bool:
        try:
            self.runtime("version")
        except Failed:
            return False
        return True

    def runtime(self, *words: str) -> str:
        """Ask the node's container runtime, which answers also when nothing else of the node does."""
        return self._within.run("ctr", "--address", self.socket, "--namespace", "k8s.io", *words, network=self.name)

    def start_kubelet(self) -> None:
        self._start(
            "kubelet",
            *(programs.program("kube"), "kubelet", "--config", self.folder / "kubelet.yaml", "--node-ip", self.address),
            *("--kubeconfig", self._cluster.access, "--hostname-override", self.name),
            *("--root-dir", self.folder / "kubelet", "--cert-dir", self.folder / "kubelet-pki"),
        )

    def stop_kubelet(self) -> None:
        """Kill the kubelet. Pods go on, but nobody looks after them, and the node is lost after some seconds."""
        self._within.stop(f"{self.name}-kubelet")

    def cut_network(self) -> None:
        """Pull the node's cable: it runs, and nothing outside of it reaches it."""
        self._within.run("ip", "link", "set", self._cable, "down")

    def restore_network(self) -> None:
        self._within.run("ip", "link", "set", self._cable, "up")

    def lose_disk(self) -> None:
        """Empty the node's own volumes (class `local`), and kill its containers as a reset of the machine does."""
        self.kill_containers()
        for volume in self._cluster.volumes.glob(f"{self.name}-*"):
            for each in volume.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def kill_containers(self) -> None:
        """Kill all processes of the node's pods at once."""
        for line in self.runtime("tasks", "ls").splitlines()[1:]:
            process, status = line.split()[1:3]
            if status == "RUNNING":
                self._within.run("kill", "-9", process)

    def is_ready(self) -> bool:
        status = self._cluster.get("node", self.name)["status"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


class Cluster:
    """A running cluster. `folder` has all of its files, its logs among them."""

    def __init__(self, within: Namespaces) -> None:
        self.within = within
        self.folder = within.folder
        self.access = self.folder / "access.yaml"
        self.volumes = self.folder / "volumes"
        self._names = self.folder / "names"
        self.group = f"quarry-kubernetes-{self.folder.name}"
        self.nodes = [Node(self, number) for number in NODES]

    def node(self, number: int) -> Node:
        return self.nodes[number - 1]

    # -- standing up and taking down

    def copy_images(self, layout: Path, template: Path) -> None:
        """Give each node images before its start. `template` is kept for later clusters: import takes some time."""
        _fill_template(self.within, layout, template)
        for node in self.nodes:
            node.folder.mkdir()
            _copy_runtime(template, node.folder / "containerd")

    def start(self) -> None:
        """Stand everything up."""
        self._make_network()
        self._start_control_plane()
        for node in self.nodes:
            node.start()
        self.apply(*dns(CONTROL_PLANE), *storage(self.volumes, [node.name for node in self.nodes]))
        self.apply(*client_pods(CLIENTS, [node.name for node in self.nodes], programs.program("flow")))
        wait_until(lambda: all(node.is_ready() for node in self.nodes), "nodes are ready", READY_TIMEOUT_S)
        for node in self.nodes:
            node.start_firewall()
        self.wait_for_pods(CLIENTS, *(f"client-{node.name}" for node in self.nodes))
        ended = [path.name for path in (self.folder / "pid").iterdir() if not self.within.is_running(path.name)]
        if ended:
            raise Failed(f"{ended} ended: see {self.folder / 'log'}")

    def _make_network(self) -> None:
        lines = [
            f"ip link add machines type bridge; ip addr add {CONTROL_PLANE}/24 dev machines; ip link set machines up",
            "ip netns add laptop",
            "ip link add to-laptop type veth peer name eth0 netns laptop; ip link set to-laptop master machines up",
            f"ip -n laptop link set lo up; ip -n laptop addr add {LAPTOP}/24 dev eth0; ip -n laptop link set eth0 up",
            f"ip -n laptop route add default via {CONTROL_PLANE}",
        ]
        self.within.run("sh", "-ec", "\n".join(lines))
        for node in self.nodes:
            node.make_network()

    def _start_control_plane(self) -> None:
        pki = self.folder / "pki"
        self._write_access(pki)
        kube = programs.program("kube")
        etcd = "http://127.0.0.1:2379"
        addresses = [
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={etcd[:-1]}80",
        ]
        self.within.start("etcd", "etcd", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", *addresses)
        self.within.start(
            "kube-apiserver",
            *(kube, "kube-apiserver", f"--etcd-servers={etcd}", "--secure-port=6443", "--authorization-mode=RBAC"),
            *(
                f"--advertise-address={CONTROL_PLANE}",
                "--allow-privileged=true",
                f"--service-cluster-ip-range={SERVICES}",
            ),
            *(f"--tls-cert-file={pki / 'api.crt'}", f"--tls-private-key-file={pki / 'api.key'}"),
            *(f"--service-account-key-file={pki / 'api.key'}", f"--service-account-signing-key-file={pki / 'api.key'}"),
            *("--service-account-issuer=https://kubernetes.default.svc", f"--token-auth-file={pki / 'tokens.csv'}"),
            # a node has no name that others know
            "--kubelet-preferred-address-types=InternalIP",
            *(f"--default-{each}-toleration-seconds={LOST_AFTER_S}" for each in ("not-ready", "unreachable")),
        )
        wait_until(self._answers, "the API server is ready", READY_TIMEOUT_S)
        self.within.start(
            "kube-controller-manager",
            *(kube, "kube-controller-manager", f"--kubeconfig={self.access}", "--leader-elect=false"),
            *(f"--service-account-private-key-file={pki / 'api.key'}", f"--root-ca-file={pki / 'ca.crt'}"),
            *("--allocate-node-cidrs=true", f"--cluster-cidr={PODS}", f"--service-cluster-ip-range={SERVICES}"),
            *("--node-monitor-grace-period=16s", "--node-monitor-period=2s"),
        )
        self.within.start(
            "kube-scheduler", kube, "kube-scheduler", f"--kubeconfig={self.access}", "--leader-elect=false"
        )
        self._names.touch()
        (self.folder / "Corefile").write_text(
            f".:53 {{\n errors\n cache 5\n hosts {self._names} {{\n  reload 1s\n  fallthrough\n }}\n"
            f" kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {self.access}\n  pods insecure\n }}\n}}\n"
        )
        self.within.start("coredns", programs.program("coredns"), "-conf", self.folder / "Corefile")

    def _write_access(self, pki: Path) -> None:
        pki.mkdir(exist_ok=True)
        authority = trustme.CA(key_type=trustme.KeyType.RSA)
        names = ["kubernetes.default.svc", "localhost", "127.0.0.1", CONTROL_PLANE, "10.96.0.1"]
        issued = authority.issue_cert(*names, key_type=trustme.KeyType.RSA)
        authority.cert_pem.write_to_path(pki / "ca.crt")
        issued.private_key_pem.write_to_path(pki / "api.key")
        (pki / "api.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (pki / "tokens.csv").write_text(f"{TOKEN},administrator,1,system:masters\n")
        server = {"server": f"https://{CONTROL_PLANE}:6443", "certificate-authority": str(pki / "ca.crt")}
        access = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "administrator", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "administrator"}}],
            "current-context": "here",
        }
        self.access.write_text(yaml.safe_dump(access))

    def _answers(self) -> bool:
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except Failed:
            return False

    def end(self) -> None:
        """End all processes and remove all that they made."""
        self.within.end()
        remove_groups(self.group)
        shutil.rmtree(self.folder)

    def update_images(self, layout: Path) -> None:
        """Let the nodes import images, where they are not those that they have: of a cluster that was kept."""
        index = (layout / "index.json").read_text()
        for node in self.nodes:
            said = node.folder / "index.json"
            if said.read_text() != index:
                self.within.run("sh", "-ec", _importing(layout, node.socket), network=node.name, timeout_s=600)
                said.write_text(index)

    def add_image(self, image: str, digest: str) -> None:
        """Let the nodes import an image that few tests need, unless they have it."""
        archive = self.folder / "image.tar"
        for node in self.nodes:
            said = node.folder / f"image-{digest.partition(':')[2][:16]}"
            if not said.exists():
                if not archive.exists():
                    images.buildah(
                        "push", "--quiet", "--disable-compression", image, f"docker-archive:{archive}:{image}"
                    )
                ctr = ("ctr", "--address", node.socket, "--namespace", "k8s.io", "images", "import")
                self.within.run(*ctr, "--snapshotter", "overlayfs", archive, network=node.name, timeout_s=600)
                said.touch()
        archive.unlink(missing_ok=True)

    # -- what a test does

    def kubectl(self, *words: str | Path, text: str = "", timeout_s: float = READY_TIMEOUT_S) -> str:
        """Return what kubectl printed. Raises Failed."""
        return self.within.run(*self._kubectl(words), text=text, timeout_s=timeout_s)

    def _kubectl(self, words: Sequence[str | Path]) -> list[str | Path]:
        return [programs.program("kube"), "kubectl", f"--kubeconfig={self.access}", *words]

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """Return an object. Raises Failed where there is none."""
        found: Object = json.loads(self.kubectl("get", kind, name, "--namespace", namespace, "--output=json"))
        return found

    def all(self, kind: str, namespace: str = "default", selector: str = "") -> list[Object]:
        """Return all objects of a kind that have the labels of a selector."""
        words = ("get", kind, "--namespace", namespace, "--output=json", f"--selector={selector}")
        return list(json.loads(self.kubectl(*words))["items"])

    def apply(self, *objects: Object) -> None:
        """Create objects, or change them to what is given."""
        self.kubectl("apply", "--filename=-", text=yaml.safe_dump_all(objects))

    def helm(self, *words: str | Path, timeout_s: float = 600) -> str:
        """Return what Helm printed. Raises Failed."""
        home = self.folder / "helm"
        environment = {f"HELM_{each}_HOME": str(home) for each in ("CACHE", "CONFIG", "DATA")}
        command = (programs.program("helm"), f"--kubeconfig={self.access}", *words)
        return self.within.run(*command, timeout_s=timeout_s, environment=environment)

    def exec(
        self,
        pod: str,
        *command: str,
        namespace: str = "default",
        container: str = "",
        text: str = "",
        timeout_s: float = READY_TIMEOUT_S,
    ) -> str:
        """Return the output of a command in a container of a pod. Raises Failed."""
        words = self._exec(pod, command, namespace, container)
        return self.within.run(*words, text=text, timeout_s=timeout_s)

    def _exec(self, pod: str, command: Sequence[str], namespace: str, container: str) -> list[str | Path]:
        chosen = ("--container", container) if container else ()
        return self._kubectl(["exec", "--stdin", pod, "--namespace", namespace, *chosen, "--", *command])

    def started_in(self, pod: str, *command: str, namespace: str = "default") -> subprocess.Popen[str]:
        """Start a command in a pod, with pipes to its input and from its output."""
        return self._popen(self.within.command(self._exec(pod, command, namespace, "")))

    def started_outside(
        self, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program of this machine on the laptop, which reaches nodes, and neither pods nor Services."""
        return self._popen(self.within.command(command, "laptop"), environment)

    def _popen(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        given = {**os.environ, **(environment or {})}
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=given)

    def outside(self, *command: str | Path, timeout_s: float = 120) -> str:
        """Return the output of a program of this machine that runs on the laptop. Raises Failed."""
        return self.within.run(*command, network="laptop", timeout_s=timeout_s)

    @contextmanager
    def port_forward(self, target: str, *ports: str, namespace: str = "default") -> Iterator[None]:
        """Forward ports of the laptop's loopback device (`8081:8081`) to a pod while the block runs."""
        words = self._kubectl(["port-forward", target, *ports, "--namespace", namespace])
        process = self._popen(self.within.command(words, "laptop"))
        assert process.stdout is not None
        try:
            if "Forwarding from" not in process.stdout.readline():
                process.kill()
                raise Failed(f"no port of {target} is forwarded: {process.communicate()[1]}")
            yield
        finally:
            # the program runs in another process id namespace, where its parent's end does not reach it
            self.within.run("pkill", "-9", "-f", f"port-forward {target} ")
            process.communicate()

    def wait_for_pods(self, namespace: str, *names: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until pods are there and ready. Raises Failed, with what the cluster says of them."""
        try:
            wait_until(lambda: all(self.is_ready(namespace, name) for name in names), f"{names} are ready", timeout_s)
        except Failed as late:
            events = self.kubectl("get", "pods,events", "--namespace", namespace, "--output=wide")
            raise Failed(f"{late}\n{events[-6000:]}") from late

    def is_leaving(self, namespace: str, pod: str) -> bool:
        """Return whether a pod is to be ended."""
        return "deletionTimestamp" in self.get("pod", pod, namespace)["metadata"]

    def allow_all(self, namespace: str) -> None:
        """Let pods of a namespace be of any kind, with ports of their node for example."""
        self.kubectl("label", "namespace", namespace, "--overwrite", "pod-security.kubernetes.io/enforce=privileged")

    def is_ready(self, namespace: str, name: str) -> bool:
        try:
            pod = self.get("pod", name, namespace)
        except Failed:
            return False
        conditions = pod["status"].get("conditions", ())
        is_leaving = "deletionTimestamp" in pod["metadata"]
        return not is_leaving and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def name_outside(self, address: str, *names: str) -> None:
        """Let DNS have names at an address, for the laptop and for pods."""
        self._names.write_text(f"{address} {' '.join(names)}\n")
        found = "import socket, sys; sys.exit(socket.gethostbyname(sys.argv[1]) != sys.argv[2])"
        for name in names:
            is_found = partial(self._succeeds, sys.executable, "-c", found, name, address)
            wait_until(is_found, f"{name} is found")

    def _succeeds(self, *command: str) -> bool:
        try:
            self.outside(*command)
        except Failed:
            return False
        return True

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """Make a namespace that enforces Pod Security `restricted`. All in it is killed and deleted at the end."""
        # of a test before this one, with the same name
        self.kubectl("wait", "namespace", name, "--for=delete", f"--timeout={READY_TIMEOUT_S:.0f}s", timeout_s=330)
        self.renew_volumes()
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforced}})
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
            self.kubectl("delete", "pods", "--all", "--namespace", name, "--grace-period=0", "--force")

    def renew_volumes(self) -> None:
        """Empty the volumes that nobody claims any more, and let them be claimed again."""
        for volume in self.all("persistentvolume"):
            if volume["status"].get("phase") == "Released":
                name = volume["metadata"]["name"]
                self.kubectl("delete", "persistentvolume", name)
                shutil.rmtree(self.volumes / name)
                (self.volumes / name).mkdir()
                spec = {key: value for key, value in volume["spec"].items() if key != "claimRef"}
                self.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})


def _fill_template(within: Namespaces, layout: Path, template: Path) -> None:
    """Let a container runtime that runs for this alone import images, where they are not those that it has."""
    index = (layout / "index.json").read_text()
    said = template / "index.json"
    if said.exists() and said.read_text() == index:
        return
    template.mkdir(parents=True, exist_ok=True)
    said.unlink(missing_ok=True)
    socket = "/run/template/containerd.sock"
    settings = within.folder / "template.toml"
    settings.write_text(containerd_settings(template, "template", socket, runtime_folder=template / "containerd"))
    within.run("mkdir", "-p", "/run/template")
    within.start("containerd", "containerd", "--config", settings)
    wait_until(
        lambda: "containerd successfully booted" in (within.folder / "log" / "containerd").read_text(), "containerd"
    )
    within.run("sh", "-ec", _importing(layout, socket), timeout_s=600)
    within.stop("containerd")
    said.write_text(index)


def _importing(layout: Path, socket: str) -> str:
    """Return the command of a shell by which a container runtime imports images."""
    ctr = f"ctr --address {socket} --namespace k8s.io"
    return f"tar --create --directory {layout} . | {ctr} images import --snapshotter overlayfs -"


def _copy_runtime(template: Path, target: Path) -> None:
    """Copy the folder of a container runtime: links to files that never change, copies of its databases."""
    source = template / "containerd"
    subprocess.run(["cp", "--archive", "--link", source, target], check=True)
    shutil.copy2(template / "index.json", target.parent)
    for database in source.rglob("*.db"):
        copied = target / database.relative_to(source)
        copied.unlink()
        shutil.copy2(database, copied)
