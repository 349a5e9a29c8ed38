"""`quarry operator` as the chart runs it: a process with the rights of its role, and a broker that asks for users."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from quarry_mq.cli.demo import free_ports
from quarry_mq.cli.operator.resources import GROUP
from quarry_mq.store.security.sealer import new_key
from tests.deploy.manifests import ROOT, manifests
from tests.documents.pages import blocks
from tests.e2e.broker import PROJECT, SMALL_SEGMENTS, Broker, clean_environment, quarry, until
from tests.operator.conftest import OPERATOR_TOKEN
from tests.operator.real_api import RealApi
from tests.operator.test_schemas import manifest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMESPACE = "quarry"
"""The namespace of the rendered manifests."""


class Site(NamedTuple):
    """A namespace with a broker, and the operator of its release."""

    api: RealApi
    broker: Broker
    environment: dict[str, str]
    http: str
    output: Path

    def kubectl(self, *words: str, text: str = "") -> str:
        return self.api.kubectl(*words, text=text, namespace=NAMESPACE)

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename", "-", text=manifest(kind, name, spec))

    def found(self, kind: str, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", kind, name, "--output", "json")))

    def wait(self, kind: str, name: str, condition: str = "Ready") -> None:
        self.kubectl("wait", f"{kind}/{name}", "--for", f"condition={condition}", "--timeout", "120s")

    def quarry(self, *words: str, context: str = "operator") -> subprocess.CompletedProcess[str]:
        return quarry("--context", context, *words, environment=self.environment)


@pytest.fixture(scope="module")
def site(real_api: RealApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    broker = secured_broker(folder)
    real_api.kubectl("create", "namespace", NAMESPACE)
    for each in manifests("operator").objects:
        if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"}:
            real_api.kubectl("apply", "--filename", "-", text=yaml.safe_dump(each), namespace=NAMESPACE)
    contexts = folder / "contexts.toml"
    contexts.write_text(f'[operator]\nadmin = "{broker.admin}"\nuser = "operator"\nsecret_file = "operator.secret"\n')
    (port,) = free_ports(1)
    environment = {**clean_environment(), "QUARRY_CONTEXTS": str(contexts)}
    arguments = ("--context", "operator", "operator", "--http", f"127.0.0.1:{port}")
    output = folder / "operator.log"
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "quarry_mq.cli.main", *arguments],
            env={**environment, "KUBECONFIG": str(real_api.kubeconfig(OPERATOR_TOKEN, NAMESPACE))},
            cwd=PROJECT,
            stdout=written,
            stderr=written,
        )
    try:
        yield Site(real_api, broker, environment, f"127.0.0.1:{port}", output)
        assert process.poll() is None, output.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, output.read_text()
        assert "Traceback" not in output.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        broker.close()


def secured_broker(folder: Path) -> Broker:
    """A broker that asks for users, with a super user for the operator."""
    key = folder / "security.key"
    key.write_bytes(new_key())
    key.chmod(0o600)
    secret = folder / "operator.secret"
    secret.write_text("the-secret-of-the-operator")
    secret.chmod(0o600)
    words = (
        "user",
        "bootstrap",
        str(folder / "store"),
        "operator",
        "--key-file",
        str(key),
        "--secret-file",
        str(secret),
    )
    done = quarry(*words)
    assert done.returncode == 0, done.stderr
    environment = {
        "QUARRY_SECURITY_KEY_FILE": str(key),
        "QUARRY_SECURITY_AUTHENTICATION": "true",
        "QUARRY_SECURITY_AUTHORIZATION": "true",
        **SMALL_SEGMENTS,
    }
    return Broker(folder / "store", logs=folder / "logs", environment=environment).start()


def patiently(look: Callable[[], bool], what: str) -> None:
    until(look, what, timeout_s=120)


def test_what_is_applied_is_at_the_broker_and_kubectl_shows_it(site: Site) -> None:
    site.apply("Topic", "parcels", {"type": "fifo", "queues": 3})
    site.apply("ConsumerGroup", "parcelling", {"fifo": True, "maxAttempts": 4})
    site.wait("topic", "parcels")
    site.wait("consumergroup", "parcelling")
    topic = json.loads(site.quarry("topic", "show", "parcels", "--json").stdout)
    assert (topic["type"], topic["writeQueues"]) == ("fifo", 3)
    assert json.loads(site.quarry("group", "show", "parcelling", "--json").stdout)["maxAttempts"] == 4
    header, *rows = site.kubectl("get", "topics").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "AGE"]
    assert ["parcels", "True", "AsDeclared"] in [row.split()[:3] for row in rows]
    assert "The topic parcels is created at the broker." in site.kubectl("describe", "topic", "parcels")
    assert "consumergroup" in site.kubectl("get", "quarry", "--output", "name")


def test_drift_is_put_right(site: Site) -> None:
    site.apply("Topic", "drifting", {"queues": 2})
    site.wait("topic", "drifting")
    assert site.quarry("topic", "update", "drifting", "--queues", "5").returncode == 0
    began_s = time.monotonic()
    patiently(lambda: condition(site.found("topic", "drifting"), "Drifted")["reason"] == "Corrected", "corrected")
    print(f"put right after {time.monotonic() - began_s:.1f} s")
    assert json.loads(site.quarry("topic", "show", "drifting", "--json").stdout)["writeQueues"] == 2
    assert "Corrected" in site.kubectl("get", "events", "--output", "custom-columns=REASON:.reason")


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {"reason": "", "status": ""})


def test_a_deletion_waits_for_unread_messages(site: Site) -> None:
    site.apply("Topic", "guarded", {"queues": 1, "deletionPolicy": "Delete"})
    site.wait("topic", "guarded")
    done = site.quarry("message", "send", "guarded", "one")
    assert done.returncode == 0, done.stderr
    site.kubectl("delete", "topic", "guarded", "--wait=false")
    patiently(
        lambda: condition(site.found("topic", "guarded"), "Ready")["reason"] == "MessagesNotConsumed", "the refusal"
    )
    assert site.quarry("topic", "show", "guarded").returncode == 0
    site.kubectl("annotate", "topic", "guarded", "mq.quarry.io/delete-messages=true")
    site.kubectl("wait", "topic/guarded", "--for", "delete", "--timeout", "120s")
    assert site.quarry("topic", "show", "guarded").returncode != 0


def test_a_user_calls_with_the_secret_in_its_secret_and_by_its_rules(site: Site) -> None:
    site.apply("Topic", "sales", {})
    site.apply("User", "shop", {"secretName": "shop-login"})
    site.apply("AccessRule", "shop-sales", {"user": "shop", "resource": "topic:sales", "actions": ["get"]})
    for kind, name in (("topic", "sales"), ("user", "shop"), ("accessrule", "shop-sales")):
        site.wait(kind, name)
    secret = site.output.parent / "shop.secret"
    with Path(site.environment["QUARRY_CONTEXTS"]).open("a") as contexts:
        contexts.write(f'[shop]\nadmin = "{site.broker.admin}"\nuser = "shop"\nsecret_file = "{secret}"\n')

    def logged_in() -> subprocess.CompletedProcess[str]:
        template = "{{.data.secretKey | base64decode}}"
        secret.write_text(site.kubectl("get", "secret", "shop-login", "--output", f"go-template={template}"))
        secret.chmod(0o600)
        return site.quarry("topic", "show", "sales", context="shop")

    assert logged_in().returncode == 0, logged_in().stderr
    assert "permission denied" in site.quarry("topic", "list", context="shop").stderr
    changed = json.dumps({"stringData": {"secretKey": "another-secret-of-the-shop"}})
    site.kubectl("patch", "secret", "shop-login", "--type", "merge", "--patch", changed)
    patiently(lambda: logged_in().returncode == 0, "the new secret")
    site.kubectl("delete", "accessrule", "shop-sales")
    assert "permission denied" in logged_in().stderr
    site.kubectl("delete", "user", "shop")
    assert "unauthenticated" in logged_in().stderr


def test_probes_and_metrics_tell_how_it_is(site: Site) -> None:
    site.apply("Topic", "counted", {})
    site.wait("topic", "counted")
    for path, wanted in (("metrics", 'quarry_operator_resources{kind="Topic",state="true"}'), ("readyz", "ready")):
        with urllib.request.urlopen(f"http://{site.http}/{path}", timeout=30) as answer:
            assert wanted in answer.read().decode()


def test_what_the_page_declares_becomes_ready(site: Site) -> None:
    page = ROOT / "docs" / "operator.md"
    texts = [each.text for each in blocks(page) if each.language == "yaml" and GROUP in each.text]
    assert len(texts) == 6
    for text in texts:
        site.kubectl("apply", "--filename", "-", text=text)
        for each in yaml.safe_load_all(text):
            site.wait(each["kind"].lower(), each["metadata"]["name"])
    rules = [json.loads(line) for line in site.quarry("acl", "show", "billing", "--json").stdout.splitlines()]
    assert {(each["resource"], *each["sources"]) for each in rules} == {
        ("topic:orders",),
        ("group:billing", "10.0.0.0/8"),
    }


def test_its_log_is_lines_of_json(site: Site) -> None:
    site.apply("Topic", "logged", {})
    site.wait("topic", "logged")
    lines = [json.loads(line) for line in site.output.read_text().splitlines()]
    assert {each["event"] for each in lines} <= {"custom resource", "message of a library"}
    assert any(each.get("reason") == "Created" for each in lines)
