"""A real kube-apiserver with etcd, for tests: no nodes, no controllers."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from quarry_mq.cli.demo import free_ports
from tests.operator.definitions import FILES

KUBE: Final = Path(
    os.environ.get("QUARRY_KUBERNETES_CACHE", Path.home() / ".cache" / "quarry-kubernetes"), "bin", "kube"
)
"""All programs of Kubernetes in one: `kube kubectl …`."""

READY_TIMEOUT_S: Final = 240.0
ADMIN_TOKEN: Final = "administrator"


def missing() -> str | None:
    """Return why there can be no real API server here; None if there can."""
    if not KUBE.is_file():
        return f"no Kubernetes in {KUBE}"
    return None if shutil.which("etcd") else "etcd is not installed (Debian: etcd-server)"


class RealApi:
    """A running API server. Each user has a token and a file for kubectl."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port

    def kubeconfig(self, token: str = ADMIN_TOKEN, namespace: str = "default") -> Path:
        """A file for kubectl and the operator, of the user with this token."""
        path = self._folder / f"{token}-{namespace}.conf"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
            f"clusters: [{{name: here, cluster: {{server: 'https://127.0.0.1:{self._port}', "
            f"certificate-authority: {self._folder / 'ca.pem'}}}}}]\n"
            f"users: [{{name: here, user: {{token: {token}}}}}]\n"
            f"contexts: [{{name: here, context: {{cluster: here, user: here, namespace: {namespace}}}}}]\n"
        )
        return path

    def kubectl(self, *words: str, text: str = "", namespace: str = "default", is_refused: bool = False) -> str:
        """Run kubectl to its end; returns its output. What is refused is told on standard error."""
        done = self.run_kubectl(words, text, namespace)
        assert (done.returncode != 0) == is_refused, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stderr if is_refused else done.stdout

    def run_kubectl(self, words: Sequence[str], text: str, namespace: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(KUBE), "kubectl", "--kubeconfig", str(self.kubeconfig(namespace=namespace)), *words],
            env={"HOME": str(self._folder), "PATH": os.environ["PATH"]},
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextmanager
def running_api(folder: Path, tokens: Sequence[tuple[str, str]] = ()) -> Iterator[RealApi]:
    """Run an API server while the block runs, with the custom resource definitions. `tokens`: token and user."""
    client_port, peer_port, port = free_ports(3)
    _make_files(folder, tokens)
    processes = []
    try:
        processes.append(_started(folder, "etcd", *_etcd_options(folder, client_port, peer_port)))
        processes.append(_started(folder, str(KUBE), "kube-apiserver", *_api_options(folder, client_port, port)))
        api = RealApi(folder, port)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while api.run_kubectl(["get", "--raw", "/readyz"], "", "default").returncode != 0:
            assert all(each.poll() is None for each in processes), _words(folder)
            assert time.monotonic() < deadline, _words(folder)
            time.sleep(0.2)
        for file in FILES:
            api.kubectl("apply", "--filename", str(file))
        api.kubectl("wait", "--for", "condition=Established", "crd", "--all", "--timeout", "60s")
        yield api
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{Path(words[0]).name}.log").open("wb") as output:
        return subprocess.Popen(words, stdout=output, stderr=output, cwd=folder)


def _words(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in folder.glob("*.log"))


def _make_files(folder: Path, tokens: Sequence[tuple[str, str]]) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(folder / "api.key")
    for each in certificate.cert_chain_pems:
        each.write_to_path(folder / "api.crt")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    lines = [f"{ADMIN_TOKEN},admin,1,system:masters", *(f"{token},{user},{user}" for token, user in tokens)]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")


def _etcd_options(folder: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    options = {
        "data-dir": folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "unsafe-no-fsync": "true",
    }
    return [f"--{name}={value}" for name, value in options.items()]


def _api_options(folder: Path, etcd_port: int, port: int) -> list[str]:
    options = {
        "etcd-servers": f"http://127.0.0.1:{etcd_port}",
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "tls-cert-file": folder / "api.crt",
        "tls-private-key-file": folder / "api.key",
        "service-account-key-file": folder / "accounts.key",
        "service-account-signing-key-file": folder / "accounts.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": "10.96.0.0/24",
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "endpoint-reconciler-type": "none",
        "disable-admission-plugins": "ServiceAccount",
    }
    return [f"--{name}={value}" for name, value in options.items()]
