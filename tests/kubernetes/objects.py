"""Objects and settings that make a cluster of the programs: networks of pods, volumes, names, pods of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.kubernetes.images import PAUSE, TOOLS

CNI: Final = Path("/usr/lib/cni")
DNS: Final = "10.96.0.10"
OBJECT_STORE: Final = "objects"
DISKS, LOCAL_DISKS = 40, 15
"""Numbers of volumes: those that any node may use, and those that each node has for itself."""

Object = dict[str, Any]


def containerd_settings(folder: Path, name: str, socket: str, runtime_folder: Path | None = None) -> str:
    """The settings of a container runtime, of which several run on one machine."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""
version = 2
root = "{runtime_folder or folder / "containerd"}"
state = "/run/{name}/containerd"
[grpc]
  address = "{socket}"
[{cri}]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true # this may be a machine on which root has not all rights
[{cri}.cni]
  bin_dir = "{CNI}"
  conf_dir = "{folder / "network"}"
[{cri}.containerd]
  default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


def pod_network(addresses: str, folder: Path) -> Object:
    """Return the network of a node's pods: a bridge. Policies ask for addresses, so the node hides none."""
    assigned = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": f"{addresses}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": assigned}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def kubelet_settings(group: str, folder: Path, socket: str) -> Object:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "resolvConf": "",
        "failSwapOn": False,
        # the machine's disk is nobody's alone
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "podLogsDir": str(folder / "pod-logs"),
        "nodeStatusUpdateFrequency": "4s",
        # contents of Secrets reach pods at the next synchronisation
        "syncFrequency": "10s",
        "shutdownGracePeriod": "0s",
    }


def dns(address: str) -> list[Object]:
    """The Service of CoreDNS. CoreDNS runs beside the API server: a lost node is no reason that names are not found."""
    where = {"namespace": "kube-system"}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", **where},
        "spec": {"clusterIP": DNS, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}, **where},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}],
        "ports": ports,
    }
    return [service, endpoints]


def storage(folder: Path, nodes: Sequence[str]) -> list[Object]:
    """Return volumes of two classes.

    Those of `disks` follow a pod to another node, as block storage does; those of `local` stay with their node.
    """
    classes = []
    for name, is_default in (("disks", "true"), ("local", "false")):
        marked = {"storageclass.kubernetes.io/is-default-class": is_default}
        metadata = {"name": name, "annotations": marked}
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata}
        classes.append(
            kind | {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        )
    volumes = [_volume(folder / f"disk-{each:02}", "disks", list(nodes)) for each in range(DISKS)]
    for node in nodes:
        volumes += [_volume(folder / f"{node}-{each:02}", "local", [node]) for each in range(LOCAL_DISKS)]
    return [*classes, *volumes]


def _volume(folder: Path, storage_class: str, nodes: list[str]) -> Object:
    folder.mkdir(parents=True, exist_ok=True)
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    spec = {
        "capacity": {"storage": "200Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": storage_class,
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": folder.name}, "spec": spec}


def many_node_volume(folder: Path, namespace: str, claim: str) -> Object:
    """Return a volume for one claim. Pods on several nodes mount it at once, as with a network file system."""
    volume = _volume(folder, "disks", ["node1", "node2"])
    volume["spec"]["accessModes"] = ["ReadWriteMany"]
    volume["spec"]["claimRef"] = {"namespace": namespace, "name": claim}
    return volume


def client_pods(namespace: str, nodes: Sequence[str], flow: Path) -> list[Object]:
    """A pod for clients on each node: the official Python client, the program of the Go client, and the flow."""
    made: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    here = Path(__file__).parent
    for node in nodes:
        container = {
            "name": "client",
            "image": TOOLS,
            "imagePullPolicy": "Never",
            "command": ["sleep", "infinity"],
            "volumeMounts": [
                {"name": "flow", "mountPath": "/flow/flow.py", "readOnly": True},
                {"name": "go", "mountPath": "/flow/flow", "readOnly": True},
            ],
        }
        volumes = [
            {"name": "flow", "hostPath": {"path": str(here / "flow.py")}},
            {"name": "go", "hostPath": {"path": str(flow)}},
        ]
        spec = {
            "nodeName": node,
            "containers": [container],
            "volumes": volumes,
            "terminationGracePeriodSeconds": 0,
            # a client stays where it is, whatever becomes of the node
            "tolerations": [{"operator": "Exists"}],
        }
        metadata = {"name": f"client-{node}", "namespace": namespace, "labels": {"app": "client"}}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return made


def object_store_pod(namespace: str) -> list[Object]:
    """Return a pod with moto's S3 server, by other people than wrote what uploads, and its Service."""
    labels = {"app": OBJECT_STORE}
    container = {
        "name": OBJECT_STORE,
        "image": TOOLS,
        "imagePullPolicy": "Never",
        "command": ["moto_server", "--host", "0.0.0.0", "--port", "5000"],
        "readinessProbe": {"tcpSocket": {"port": 5000}, "periodSeconds": 1},
    }
    metadata = {"name": OBJECT_STORE, "namespace": namespace, "labels": labels}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"port": 5000}]},
        },
    ]
