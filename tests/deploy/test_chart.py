"""The chart, by Helm itself: what it renders is what lies in deploy/kubernetes, and what it refuses.

Helm and kube-score are Go modules, built once into build/tools; `HELM` names a Helm that is there already.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from quarry_mq.server.settings.broker_settings import BrokerSettings, load_settings
from quarry_mq.store.security.sealer import read_keys
from tests.deploy.manifests import CHART, DEPLOY, VARIANTS, Manifests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Made = Callable[..., Manifests]

KUBE_SCORE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
NOT_WANTED = {
    "container-image-pull-policy": "tags are versions, which do not change",
    "service-targets-pod": "the label of a single pod is not in the template; `test_manifests` looks at it",
}
"""Checks of kube-score that are not followed, each with its reason."""


@pytest.fixture(scope="module")
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", DEPLOY / "helm" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(render: ModuleType, module: str) -> str:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed, which builds Helm and kube-score")
    return str(render.tool(module))


@pytest.fixture(scope="module")
def helm(render: ModuleType) -> str:
    return os.environ.get("HELM") or built(render, render.HELM)


def template(helm: str, render: ModuleType, *options: str) -> subprocess.CompletedProcess[str]:
    where = ("--namespace", "elsewhere", "--kube-version", render.KUBE_VERSION)
    command = [helm, "template", "mq", str(CHART), *where, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_manifests_are_what_the_chart_makes(helm: str, render: ModuleType) -> None:
    files = {path.name: path.read_text() for path in (DEPLOY / "kubernetes").iterdir()}
    made = dict(render.all_rendered(helm))
    assert [name for name in files.keys() | made if files.get(name) != made.get(name)] == [], "run `make manifests`"


def test_helm_finds_no_fault(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["replicas=3", "cluster.enabled=false"], "cluster.enabled = false needs replicas = 1"),
        (["replicas=3", "advertise.kind=dialled"], "for one broker alone"),
        (["advertise.kind=dialled", "advertise.address=a:1"], "are both set"),
        (["replicas=11", "advertise.kind=node-port"], "has ports for ten pods"),
        (["advertise.kind=ingress", "advertise.host=mq.example.com"], "needs tls.enabled"),
        (["advertise.kind=load-balancer"], "advertise.host is needed"),
        (["backup.enabled=true"], "backup.destination is needed"),
        (
            ["backup.enabled=true", "backup.destination=a:b", "store.accessMode=ReadWriteOncePod"],
            "needs store.accessMode = ReadWriteOnce",
        ),
        (["backup.contextSecret=quarry-operator"], "needs backup.context"),
        (["cluster.enabled=true", "advertise.kind=dialled"], "for one broker alone"),
        (["admin.exposed=true"], "nobody is asked who he is: set settings.security.authentication"),
        (["backup.enabled=true", "backup.destination=a:b"], "nobody is asked who he is"),
        (["operator.contextSecret=quarry-operator"], "needs operator.context"),
        (["operator.enabled=true", "tls.enabled=true"], "operator.contextSecret is needed"),
        (["operator.enabled=true", "settings.security.authentication=true"], "operator.contextSecret is needed"),
        (["operator.enabled=true"], "nobody is asked who he is"),
        (["console.enabled=true", "console.exposed=true"], "nobody is asked who he is"),
        (["admin.exposed=true", "settings.security.admin_authentication=false"], "nobody is asked who he is"),
        (["settings.security.open_admin=true"], "settings.security.open_admin: the chart says this one"),
        (["settings.security.admin_callers=anywhere"], "settings.security.admin_callers: the chart says this one"),
        (["settings.network.listen=0.0.0.0:1"], "settings.network.listen: the chart says this one"),
        (["settings.broker.name=one"], "settings.broker.name: the chart says this one"),
        (["follow.from=a:1", "replicas=3", "security.openAdmin=true"], "follow.from needs replicas = 1"),
        (["follow.from=a:1", "warmCopies=1", "operator.enabled=true"], "follow.from and warmCopies are both set"),
        (["follow.from=a:1", "follow.cutOver=true"], "follow.cutOver needs follow.from and operator.enabled"),
        (["replicaCount=3"], "replicaCount"),
        (["settings.limits.body_size.MiB=4"], "body_size"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_name(
    options: list[str], reason: str, helm: str, render: ModuleType
) -> None:
    done = template(helm, render, *(word for each in options for word in ("--set", each)))
    assert done.returncode != 0
    assert reason in done.stderr


def test_values_of_every_kind_become_toml(helm: str, render: ModuleType, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    settings: dict[str, dict[str, object]] = {
        "store": {"segment_size": 1_073_741_824},
        "topics": {"auto_create": False},
        "tracing": {"sample_ratio": 0.25, "endpoint": 'http://a/"b"\\<c>&é'},
        "expiry": {"delete_when": []},
        "consume_queue": {"double_write_topics": ["orders-*", "a"]},
    }
    values.write_text(json.dumps({"settings": settings, "replicas": 2}))
    done = template(helm, render, "--values", str(values))
    assert done.returncode == 0, done.stderr

    made = Manifests(done.stdout)
    assert {name: made.settings[name] for name in settings if name != "store"} == {
        name: value for name, value in settings.items() if name != "store"
    }
    assert made.settings["store"] == settings["store"] | {"directory": "/var/lib/quarry/store"}
    assert made.settings["cluster"]["dns"] == "mq-quarry-headless.elsewhere.svc.cluster.local:8082"
    assert made.pod_names == ["mq-quarry-0", "mq-quarry-1"]
    assert made.only("StatefulSet")["spec"]["serviceName"] == "mq-quarry-headless"


@pytest.fixture
def made(helm: str, render: ModuleType) -> Made:
    """Render the chart with values."""

    def make(*options: str) -> Manifests:
        done = template(helm, render, *(word for each in options for word in ("--set", each)))
        assert done.returncode == 0, done.stderr
        return Manifests(done.stdout)

    return make


def taken(made: Manifests) -> BrokerSettings:
    """Return the settings as a broker reads them. Its address is in the environment."""
    return load_settings(
        None, made.settings | {"network": made.settings["network"] | {"advertise": "mq-quarry-0:8081"}}
    )


def test_one_broker_after_a_port_forward_tells_no_address(made: Made) -> None:
    dialled = made("advertise.kind=dialled")
    assert "QUARRY_NETWORK_ADVERTISE" not in dialled.environment(0)
    assert dialled.environment(0)["QUARRY_BROKER_NAME"] == "mq-quarry-0"
    assert "cluster" not in dialled.settings


def test_more_replicas_change_nothing_in_the_pods_that_are_there(made: Made) -> None:
    """The first broker was restarted to become a member, and no producer knew another one: 19 s without a send."""
    one, three = made(), made("replicas=3")
    assert one.pod == three.pod
    assert one.settings == three.settings
    assert one.settings["cluster"]["key_file"] == "/run/quarry/cluster.key"


def test_an_installation_makes_a_key_that_members_take(made: Made, tmp_path: Path) -> None:
    secret = made().only("Secret")
    assert secret["metadata"]["name"] == "quarry-cluster"
    assert secret["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert secret["immutable"] is True, "another rendering has another key, and must not replace this one"
    file = tmp_path / "cluster.key"
    file.touch(0o600)
    file.write_bytes(b64decode(secret["data"]["cluster.key"]))
    (key,) = read_keys(file)
    assert len(urlsafe_b64decode(key)) == 32
    assert made().only("Secret")["data"] != secret["data"]
    for option in ("cluster.createKey=false", "cluster.enabled=false", "advertise.kind=dialled"):
        assert not made(option).all("Secret"), option


def test_operators_in_other_pods_are_served_only_where_the_values_say_so(made: Made) -> None:
    assert made().settings["security"] == {"admin_callers": "this-machine"}
    assert made("security.openAdmin=true").settings["security"] == {"open_admin": True}
    assert "security" not in made("cluster.enabled=false").settings
    users = made("settings.security.authentication=true", "admin.exposed=true").settings["security"]
    assert users == {"authentication": True}
    assert taken(made()).open_to_everybody == {}


def test_a_pod_follows_until_that_is_removed_again(made: Made) -> None:
    follows = made("follow.from=[fd00::7]:10911", "follow.haPort=20000")
    assert follows.container("follow")["args"][1] == "[fd00::7]:10911"
    assert follows.broker["args"][-1] == "--after-cut-over"
    assert [{"port": 10911}, {"port": 20000}] in [
        rule["ports"] for rule in follows.named("NetworkPolicy", "mq-quarry")["spec"]["egress"]
    ]
    operated = made("follow.from=a:10911", "operator.enabled=true", "follow.cutOver=true", "security.openAdmin=true")
    data = operated.named("ConfigMap", "mq-quarry-shards")["data"]
    assert json.loads(data["migration.json"])["spec"] == {"pod": "mq-quarry-0", "maxLagBytes": 1048576, "cutOver": True}
    assert [each["name"] for each in made().pod["spec"]["containers"]] == ["broker"]
    assert "--after-cut-over" not in made().broker["args"]


@pytest.mark.parametrize("tls", [False, True])
def test_the_console_is_there_when_it_is_asked_for(tls: bool, made: Made) -> None:
    made = partial(made, f"tls.enabled={str(tls).lower()}")
    network = made().settings["network"]
    assert network["console"] == "off"
    within = made("console.enabled=true", "console.hosts={mq.example}")
    assert within.settings["network"]["console"] == "127.0.0.1:8083"
    assert within.settings["network"]["console_hosts"] == ["mq.example"]
    assert "console" not in within.text.replace("console_hosts", "").replace("console = ", "")
    everybody = "security.openAdmin=true"
    outside = made("console.enabled=true", "console.exposed=true", "console.port=9000", everybody)
    assert outside.settings["security"] == {"open_admin": True}
    users = "settings.security.authentication=true"
    assert "open_admin" not in made("console.enabled=true", "console.exposed=true", users).settings["security"]
    assert outside.settings["network"]["console"] == "0.0.0.0:9000"
    assert outside.settings["network"].get("console_tls", False) is tls
    assert taken(outside).network.console_tls is tls
    (container,) = outside.only("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert {"name": "console", "containerPort": 9000} in container["ports"]
    assert "port: console" not in outside.text, "nobody reaches it unless a policy says so"
    policy = "networkPolicy.console[0].podSelector.matchLabels.a=b"
    asked = made("console.enabled=true", "console.exposed=true", everybody, policy)
    assert "port: console" in asked.text


@pytest.mark.parametrize("variant", VARIANTS)
def test_policies_of_kube_score_are_kept(variant: str, render: ModuleType) -> None:
    program = built(render, KUBE_SCORE)
    ignored = [word for name in NOT_WANTED for word in ("--ignore-test", name)]
    file = DEPLOY / "kubernetes" / f"{variant}.yaml"
    # a limit on CPU throttles the broker and makes all its clients wait
    options = ("--output-format", "json", "--kubernetes-version", "v1.34", "--ignore-container-cpu-limit")
    command = [program, "score", *options, *ignored, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    critical = [
        f"{each['object_name']}: {check['check']['id']}: {check['comments']}"
        for each in json.loads(done.stdout)
        for check in each["checks"]
        if not check["skipped"] and check["grade"] == 1
    ]
    assert not critical
    assert done.returncode == 0, done.stderr
