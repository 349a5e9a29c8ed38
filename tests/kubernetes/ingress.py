"""An ingress controller of a few lines: HAProxy of Debian in a pod, which passes TLS through by the name in it.

Its configuration is made of the Ingress objects, as a controller would make it: host to Service and port. It stands for
the controllers that users run; what they have in common is that they read `spec.rules` and do not end TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tests.kubernetes.cluster import Object
from tests.kubernetes.images import TOOLS
from tests.kubernetes.release import Release

CLASS: Final = "passthrough"
LABELS: Final[Mapping[str, str]] = {"app": "ingress"}
NAME: Final = "ingress"
PORT: Final = 8443


def configuration(ingresses: list[Object]) -> str:
    """Return the configuration of HAProxy. A connection whose name is in no rule is refused."""
    lines = [
        "defaults",
        "  mode tcp",
        "  timeout connect 5s",
        "  timeout client 1h",
        "  timeout server 1h",
        "frontend tls",
        f"  bind :{PORT}",
        "  tcp-request inspect-delay 5s",
        "  tcp-request content accept if { req_ssl_hello_type 1 }",
    ]
    servers = []
    for each in ingresses:
        assert each["spec"]["ingressClassName"] == CLASS
        for rule in each["spec"]["rules"]:
            (path,) = rule["http"]["paths"]
            service = path["backend"]["service"]
            name = f"{service['name']}-{service['port']['name']}"
            lines.append(f"  use_backend {name} if {{ req_ssl_sni -i {rule['host']} }}")
            target = f"{service['name']}.{each['metadata']['namespace']}.svc.cluster.local"
            servers.append((name, target, service))
    for name, target, service in servers:
        lines += [f"backend {name}", f"  server pod {target}:{service['port']['number']}"]
    return "\n".join([*lines, ""])


def with_port_numbers(release: Release, ingresses: list[Object]) -> list[Object]:
    """Look up the ports that the rules name."""
    for each in ingresses:
        for rule in each["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                ports = release.cluster.get("service", service["name"], release.namespace)["spec"]["ports"]
                (number,) = (port["port"] for port in ports if port["name"] == service["port"]["name"])
                service["port"]["number"] = number
    return ingresses


@contextmanager
def controller(release: Release) -> Iterator[str]:
    """Run the proxy for the ingresses of a release. Yield the address where it listens on port 443."""
    cluster, namespace = release.cluster, release.namespace
    settings = configuration(with_port_numbers(release, cluster.all("ingress", namespace)))
    node = cluster.node(1)
    metadata = {"name": NAME, "namespace": namespace, "labels": dict(LABELS)}
    container = {
        "name": NAME,
        "image": TOOLS,
        "imagePullPolicy": "Never",
        "command": ["haproxy", "-f", "/etc/ingress/haproxy.cfg"],
        "ports": [{"containerPort": PORT, "hostPort": 443}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/ingress"}],
    }
    spec = {
        "nodeName": node.name,
        "containers": [container],
        "volumes": [{"name": "settings", "configMap": {"name": NAME}}],
        "terminationGracePeriodSeconds": 0,
    }
    cluster.allow_all(namespace)
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"haproxy.cfg": settings}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    )
    cluster.wait_for_pods(namespace, NAME)
    yield node.address
