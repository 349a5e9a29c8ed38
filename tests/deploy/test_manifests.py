"""The manifests in deploy/kubernetes agree with Kubernetes, with each other, and with what a broker does.

They are what the chart made of each variant; that they still are, `test_chart.py` tells.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from quarry_mq.cli.operator.shards import STORE
from quarry_mq.server.addresses import split_address
from quarry_mq.server.process.stop import StopTimes
from quarry_mq.server.settings.broker_settings import BrokerSettings, load_settings
from tests.commands import root
from tests.deploy.manifests import DEPLOY, ROOT, VARIANTS, Manifests, manifests, mount_of, pod_names, selects
from tests.operator.definitions import DEFINITIONS, schema_of

HEARTBEAT_MS = 10_000
"""Milliseconds between heartbeats of producers, which use a member that failed again after one."""
POD_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
ROLE_LABEL = "mq.quarry.io/role"
NOT_OF_KUBERNETES = {"Certificate", "ServiceMonitor", "PrometheusRule"}
DOCKERFILE = (DEPLOY / "image" / "Dockerfile").read_text()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QUARRY_"):
            monkeypatch.delenv(name)


@pytest.fixture(params=VARIANTS)
def these(request: pytest.FixtureRequest) -> Manifests:
    return manifests(request.param)


def loaded(these: Manifests, index: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerSettings:
    """The settings of one pod, read as the broker reads them."""
    for name, value in these.environment(index).items():
        monkeypatch.setenv(name, value)
    file = folder / "quarry.toml"
    file.write_text(these.toml)
    return load_settings(file)


def test_every_variant_has_its_manifests_and_all_manifests_have_a_variant() -> None:
    assert sorted(path.stem for path in (DEPLOY / "kubernetes").glob("*")) == sorted(VARIANTS)


def test_kubectl_takes_the_broker_without_a_word(these: Manifests) -> None:
    """A line about the container that kubectl chose stood before each answer of `kubectl exec` and `kubectl logs`."""
    assert these.pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == these.broker["name"]


def test_kubernetes_knows_every_field(these: Manifests) -> None:
    for each in these.objects:
        if each["kind"] not in NOT_OF_KUBERNETES:
            kubernetes_validate.validate(each, "1.34", strict=True)


def test_nothing_was_left_out_by_a_template(these: Manifests) -> None:
    """rocketmq-operator#80: a broker's file with `<nil>` in it."""
    assert not re.search(r"<nil>|<no value>|%!|\bnull\b|: $|= $", these.text, flags=re.MULTILINE)
    names = [(each["kind"], each["metadata"]["name"]) for each in these.objects]
    assert len(names) == len(set(names))
    namespaced = [each for each in these.objects if each["kind"] != "CustomResourceDefinition"]
    assert {each["metadata"]["namespace"] for each in namespaced} == {"quarry"}


def test_each_pod_starts_with_settings_that_a_broker_takes(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, name in enumerate(these.pod_names):
        settings = loaded(these, index, tmp_path, monkeypatch)
        assert settings.broker.name == name
        assert settings.network.plain_text == "loopback" or "plain_text" in these.settings["network"]


def test_a_cluster_is_said_where_there_are_several(these: Manifests) -> None:
    if "cluster" not in these.settings:
        assert len(these.pod_names) == 1
        return
    cluster = these.settings["cluster"]
    host, port = split_address(cluster["dns"])
    service = these.named("Service", host.split(".")[0])
    assert host == f"{service['metadata']['name']}.quarry.svc.cluster.local"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert {"name": "admin", "port": port, "targetPort": "admin"} in service["spec"]["ports"]
    assert cluster["key_file"] == "/run/quarry/cluster.key"


def test_ports_are_those_that_the_settings_open(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = loaded(these, 0, tmp_path, monkeypatch).network
    opened = {"grpc": network.listen, "admin": network.admin, "http": network.http, "grpc-tls": network.tls_listen}
    opened["replication"] = network.replication if these.has_copies else None
    for name, address in opened.items():
        host, port = split_address(address) if address else ("127.0.0.1", 0)
        assert these.ports.get(name) == (port if host == "0.0.0.0" else None), name


def test_every_named_port_is_one_of_the_pods(these: Manifests) -> None:
    for service in these.all("Service"):
        assert selects(service["spec"]["selector"], these.pod, **pod_label(service)), service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert port["name"] == port["targetPort"]
            assert port["targetPort"] in these.ports
    policy = these.named("NetworkPolicy", "quarry")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], these.pod)
    ports = [port["port"] for rule in (*policy["ingress"], *policy["egress"]) for port in rule["ports"]]
    outside = (
        {10911, 10912} if [each for each in these.pod["spec"]["containers"] if each["name"] == "follow"] else set()
    )
    assert {port for port in ports if port != 53} == {*these.ports, *outside}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert these.broker[name]["httpGet"]["port"] == "http"
    # a broker does not listen earlier, and a probe before that is a warning in the events of the pod
    assert these.broker["startupProbe"]["initialDelaySeconds"] >= 3


def pod_label(service: dict[str, Any]) -> dict[str, str]:
    """The labels by which a Service chooses one pod, if it does. Its template does not have them."""
    labels = (POD_LABEL, INDEX_LABEL, ROLE_LABEL)
    return {name: value for name, value in service["spec"]["selector"].items() if name in labels}


def chosen(these: Manifests, service: dict[str, Any]) -> str:
    """The pod that a Service chooses; with copies that of the shard, as long as nothing was promoted."""
    selector = service["spec"]["selector"]
    return str(selector[POD_LABEL] if POD_LABEL in selector else these.pod_names[int(selector[INDEX_LABEL])])


def reached(these: Manifests, address: str) -> str:
    """The pod that a client reaches by an advertised address, as DNS and Kubernetes lead it there, or "" for none."""
    host, port = split_address(address)
    headless = these.shards["spec"]["serviceName"]
    service_ports = these.named("Service", headless)["spec"]["ports"]
    for pod in these.pod_names:
        if host == f"{pod}.{headless}.quarry.svc.cluster.local" and port in (each["port"] for each in service_ports):
            return pod
    for service in these.all("Service"):
        is_port = port in (each["port"] for each in service["spec"]["ports"])
        if pod_label(service) and host == f"{service['metadata']['name']}.quarry.svc.cluster.local":
            assert is_port
            return chosen(these, service)
    for ingress in these.all("Ingress"):
        for rule in ingress["spec"]["rules"]:
            if rule["host"] == host and port == 443:
                backend = rule["http"]["paths"][0]["backend"]["service"]
                service = these.named("Service", backend["name"])
                assert backend["port"]["name"] in (each["name"] for each in service["spec"]["ports"])
                return chosen(these, service)
    for service in these.all("Service"):
        spec, annotations = service["spec"], service["metadata"].get("annotations", {})
        for each in spec["ports"]:
            is_port = spec["type"] == "NodePort" and each["nodePort"] == port if spec.get("type") else False
            is_name = host in annotations.values() and spec["type"] == "LoadBalancer" and each["port"] == port
            if is_port or is_name:
                return chosen(these, service)
    return ""


def test_clients_of_rocketmq_4_are_served_at_the_ports_for_clients(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Services have no port of RocketMQ's own: Quarry's front takes both protocols at each port for clients."""
    settings = loaded(these, 0, tmp_path, monkeypatch)
    assert settings.remoting.is_on
    assert settings.network.front != "grpcio"


def test_each_broker_tells_an_address_that_leads_to_itself(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most repeated complaint of all: rmq#8864, #6268, #8865, rocketmq-clients#742, rocketmq-helm#24, #31."""
    told = set()
    for index, pod in enumerate(these.pod_names):
        network = loaded(these, index, tmp_path, monkeypatch).network
        addresses = [each for each in (network.advertise, network.tls_advertise) if each is not None]
        assert addresses
        assert [reached(these, each) for each in addresses] == [pod] * len(addresses)
        told |= set(addresses)
        assert len(told) == len(addresses) * (index + 1)


def test_whom_a_route_sends_to_a_pod_reaches_it_before_it_is_ready(these: Manifests) -> None:
    """A restarted member serves for some time before it is ready, and no other pod has its messages."""
    for service in these.all("Service"):
        names_one = {POD_LABEL, INDEX_LABEL} & service["spec"]["selector"].keys()
        is_of_one_pod = bool(names_one) or service["spec"].get("clusterIP") == "None"
        assert service["spec"].get("publishNotReadyAddresses", False) is is_of_one_pod


def test_each_member_tells_the_others_an_address_that_leads_to_its_own_admin_port(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members of a machine with node ports told one address, which led nowhere: no message group had an owner."""
    told = [loaded(these, index, tmp_path, monkeypatch).cluster.advertise for index in range(len(these.pod_names))]
    if "cluster" not in these.settings:
        assert told == [None]
        return
    assert [reached(these, str(each)) for each in told] == these.pod_names
    assert {split_address(str(each))[1] for each in told} == {these.ports["admin"]}


def test_clients_with_tls_are_led_to_a_port_that_speaks_it(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = loaded(these, 0, tmp_path, monkeypatch).network
    of_pods = [each for each in these.all("Service") if {POD_LABEL, INDEX_LABEL} & pod_label(each).keys()]
    within = [each for each in of_pods if "-shard-" in each["metadata"]["name"]]
    outside = [each for each in of_pods if each not in within]
    target = "grpc" if network.tls_listen is None else "grpc-tls"
    assert all(port["targetPort"] == target for service in outside for port in service["spec"]["ports"])
    assert all(port["targetPort"] in {"grpc", "admin"} for service in within for port in service["spec"]["ports"])
    assert not within or {each["spec"].get("type") for each in within} == {None}
    assert (network.tls_listen is None) == (network.tls_advertise is None)


def test_the_certificate_is_for_every_name_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    these = manifests("load-balancers")
    names = these.only("Certificate")["spec"]["dnsNames"]
    assert these.only("Certificate")["spec"]["secretName"] == volume(these.pod["spec"], "tls")["secret"]["secretName"]
    network = loaded(these, 0, tmp_path, monkeypatch).network
    cluster = loaded(these, 0, tmp_path, monkeypatch).cluster
    for address in (network.advertise, network.tls_advertise, cluster.advertise):
        assert address is not None
        host = split_address(address)[0]
        assert any(fnmatchcase(host, name) and host.count(".") == name.count(".") for name in names), host


def test_a_broker_has_the_time_that_it_takes_to_stop(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(these, 0, tmp_path, monkeypatch)
    stop = StopTimes.of(settings.network, settings.cluster)
    assert stop.delay_s > 0
    # clients ask for routes every 30 s
    assert "cluster" not in these.settings or stop.leave_s > 30
    assert these.pod["spec"]["terminationGracePeriodSeconds"] >= stop.total_s + 5


def test_no_probe_waits_for_a_recovery_but_readiness(these: Manifests) -> None:
    """rmq#9587: a probe killed a slow recovery, and it started over, for ever."""
    broker = these.broker
    assert broker["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    # a copy that follows is ready, too: an update waits for it
    assert broker["readinessProbe"]["httpGet"]["path"] == ("/replica" if these.has_copies else "/readyz")


def volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
    found = [each for each in pod.get("volumes", ()) if each["name"] == name]
    assert len(found) == 1, name
    return dict(found[0])


def test_what_is_mounted_is_there_and_nothing_is_there_for_nobody(these: Manifests) -> None:
    claimed = {each["metadata"]["name"] for each in these.shards["spec"]["volumeClaimTemplates"]}
    for template in these.pod_templates():
        pod = template["spec"]
        is_broker = template["metadata"]["labels"]["app.kubernetes.io/component"] == "broker"
        there = {each["name"] for each in pod["volumes"]} | (claimed if is_broker else set())
        containers = [*pod.get("initContainers", ()), *pod["containers"]]
        assert {each["name"] for one in containers for each in one["volumeMounts"]} == there


def test_the_store_lies_on_the_volume_of_its_shard_and_is_looked_at_before(
    these: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rocketmq-docker#115: a volume that was mounted elsewhere, and the data gone with the pod."""
    (claim,) = these.shards["spec"]["volumeClaimTemplates"]
    directory = loaded(these, 0, tmp_path, monkeypatch).store.directory
    mount = mount_of(these.broker, str(directory))
    assert mount["name"] == claim["metadata"]["name"]
    assert not mount.get("readOnly")
    (prepare,) = these.pod["spec"]["initContainers"]
    assert prepare["command"][:3] == ["python", "/opt/quarry/prepare.py", mount["mountPath"]]
    assert mount in prepare["volumeMounts"]
    assert these.shards["spec"]["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


def test_every_file_that_the_settings_name_is_mounted(these: Manifests) -> None:
    pod = these.pod["spec"]
    (prepare,) = pod["initContainers"]
    for section in these.settings.values():
        for key, value in section.items():
            if not (isinstance(value, str) and value.startswith("/")) or key == "directory":
                continue
            path = Path(value)
            mount = mount_of(these.broker, value)
            assert mount["readOnly"] is True
            if not key.endswith("key_file"):
                assert volume(pod, mount["name"])["secret"]["secretName"] == "quarry-tls"
                continue
            # a key comes through memory, and the name of its file is that of the Secret's entry
            assert volume(pod, mount["name"])["emptyDir"]["medium"] == "Memory"
            assert prepare["command"][3:] == ["--keys", "/secrets", str(path.parent)]
            sources = volume(pod, mount_of(prepare, "/secrets")["name"])["projected"]["sources"]
            assert path.name in [item["path"] for source in sources for item in source["secret"]["items"]]


def test_no_container_has_a_right_that_it_does_not_need(these: Manifests) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, flags=re.MULTILINE)
    assert user is not None
    for pod, container in these.containers():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))
        assert security["fsGroup"] == int(user[2])
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is (pod["serviceAccountName"] == "quarry-operator")
        assert pod["enableServiceLinks"] is False
        assert set(container["resources"]) == {"requests", "limits"}
        if container["image"].startswith("quarry:"):
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert container["image"] == f"quarry:{project['version']}"


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """A command and its options, as `quarry` understands them. Raises UsageError."""
    name, *rest = arguments
    return name, dict(root().commands[name].make_context(name, rest).params)


def test_the_broker_is_started_with_the_file_that_is_mounted(these: Manifests) -> None:
    name, options = parsed(these.broker["args"])
    assert name == "serve"
    file = Path(options["config"])
    source = volume(these.pod["spec"], mount_of(these.broker, str(file))["name"])["configMap"]["name"]
    assert file.name in these.named("ConfigMap", source)["data"]


def test_commands_in_a_pod_speak_tls_where_its_admin_port_does(these: Manifests) -> None:
    context_file = these.environment(0).get("QUARRY_CONTEXTS")
    network = these.settings["network"]
    assert (context_file is not None) == network.get("admin_tls", False)
    if context_file is None:
        return
    path = Path(context_file)
    source = volume(these.pod["spec"], mount_of(these.broker, context_file)["name"])["configMap"]["name"]
    file = tomllib.loads(these.named("ConfigMap", source)["data"][path.name])
    context = file[these.environment(0)["QUARRY_CONTEXT"]]
    for name, listening in (("endpoint", network["listen"]), ("admin", network["admin"])):
        assert context[name] == f"localhost:{split_address(listening)[1]}"
    assert mount_of(these.broker, context["tls_ca"])["name"] == "tls"


def test_another_text_of_settings_is_another_pod() -> None:
    annotations = {manifests(each).pod["metadata"]["annotations"]["checksum/settings"] for each in VARIANTS}
    texts = {manifests(each).toml for each in VARIANTS}
    assert len(annotations) == len(texts)


def test_a_backup_runs_beside_its_broker_on_the_same_volume() -> None:
    these = manifests("ingress")
    for pod in these.pod_names:
        job = these.named("CronJob", f"{pod}-backup")
        template = job["spec"]["jobTemplate"]["spec"]["template"]
        spec = template["spec"]
        steps = {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}
        assert list(steps) == ["prepare", "backup", "upload", "complete"]
        assert volume(spec, "store")["persistentVolumeClaim"]["claimName"] == f"store-{pod}"
        (affinity,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        chosen = affinity["labelSelector"]["matchLabels"]
        assert chosen[POD_LABEL] == pod
        assert selects(chosen, these.pod, **{POD_LABEL: pod})
        assert not selects(these.shards["spec"]["selector"]["matchLabels"], template)

        _, options = parsed(steps["backup"]["args"])
        assert reached(these, options["admin"]) == pod
        (folder,) = options["paths"]
        # the broker says where its store lies, and the command looks there
        store = mount_of(these.broker, these.settings["store"]["directory"])
        assert mount_of(steps["backup"], str(folder)) == store
        assert not Path(folder).is_relative_to(these.settings["store"]["directory"])
        assert {each["name"]: each["value"] for each in steps["backup"]["env"]} == {
            "QUARRY_CONTEXTS": "/run/quarry/contexts.toml",
            "QUARRY_CONTEXT": "backup",
        }
        for name in ("upload", "complete"):
            mount = mount_of(steps[name], "/backups")
            assert f"{store['mountPath']}/{mount['subPath']}" == str(folder)
            assert steps[name]["args"][1:3] == ["/backups", f"store:backups/quarry/{pod}"]
        assert steps["upload"]["args"][3:] == ["--exclude", "/lock", "--exclude", "/*/backup-manifest.json"]


def test_the_alert_rules_of_the_chart_are_those_of_prometheus() -> None:
    rules = DEPLOY / "prometheus" / "alerts.yaml"
    assert (DEPLOY / "helm" / "quarry" / "alerts.yaml").read_bytes() == rules.read_bytes(), "run `make manifests`"
    rule, monitor = (manifests("ingress").only(kind) for kind in ("PrometheusRule", "ServiceMonitor"))
    assert rule["spec"] == yaml.safe_load(rules.read_text())
    assert rule["metadata"]["labels"] == monitor["metadata"]["labels"]


def test_files_that_need_more_than_kubernetes_say_what_to_install(these: Manifests) -> None:
    """`kubectl apply` said `no matches for kind`, and nothing said whose kind it is."""
    groups = {each["apiVersion"].partition("/")[0] for each in these.objects}
    told = re.findall(r"^# Install (.+) before you apply", these.text, flags=re.MULTILINE)
    needed = {"cert-manager.io": "cert-manager", "monitoring.coreos.com": "the Prometheus operator"}
    assert told == [name for group, name in needed.items() if group in groups]
    assert {each["apiVersion"] for each in these.objects if each["kind"] in NOT_OF_KUBERNETES} <= {
        "cert-manager.io/v1",
        "monitoring.coreos.com/v1",
    }


def test_a_restore_is_started_by_hand_and_never_runs_beside_its_broker() -> None:
    these = manifests("ingress")
    jobs = [f"{pod}-{what}" for pod in these.pod_names for what in ("backup", "restore")]
    assert [each["metadata"]["name"] for each in these.all("CronJob")] == jobs
    for pod in these.pod_names:
        job = these.named("CronJob", f"{pod}-restore")["spec"]
        assert job["suspend"]
        template = job["jobTemplate"]["spec"]["template"]
        spec = template["spec"]
        (affinity,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert affinity["topologyKey"] == "kubernetes.io/os"
        assert selects(affinity["labelSelector"]["matchLabels"], these.pod, **{POD_LABEL: pod})
        assert not selects(affinity["labelSelector"]["matchLabels"], template)
        assert volume(spec, "store")["persistentVolumeClaim"]["claimName"] == f"store-{pod}"
        kubernetes_validate.validate(these.named("CronJob", f"{pod}-restore"), "1.34", strict=True)
        steps = {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}
        assert list(steps) == ["fetch", "restore", "clear"]
        backup = these.named("CronJob", f"{pod}-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        upload = next(each for each in backup["initContainers"] if each["name"] == "upload")
        assert steps["fetch"]["command"][4:] == [upload["args"][2]]
        _, options = parsed(steps["restore"]["args"])
        store = mount_of(these.broker, these.settings["store"]["directory"])
        assert mount_of(steps["restore"], str(options["store"])) == store
        assert options["store"] == Path(these.settings["store"]["directory"])
        for name in ("fetch", "clear"):
            mount = mount_of(steps[name], "/restore")
            assert f"{store['mountPath']}/{mount['subPath']}" == str(options["backup"])
        assert options["set_aside"]


def test_whoever_may_call_the_admin_port_is_of_this_release(these: Manifests) -> None:
    rules = these.named("NetworkPolicy", "quarry")["spec"]["ingress"]
    admin = [rule for rule in rules if {"port": "admin"} in rule["ports"]]
    assert len(admin) == ("admin" in these.ports)
    for rule in admin:
        assert rule["ports"] == [{"port": "admin"}]
        (source,) = rule["from"]
        for template in these.pod_templates():
            assert selects(source["podSelector"]["matchLabels"], template)


def test_one_pod_goes_at_a_time_and_they_lie_apart(these: Manifests) -> None:
    pods = these.shards["spec"]["template"]
    budget = these.only("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    if len(these.pod_names) > 1:
        # a budget counts pods that are ready, however short
        assert these.settings["cluster"]["ready_delay_ms"] >= HEARTBEAT_MS
    assert selects(budget["selector"]["matchLabels"], pods)
    spread = pods["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    for each in spread:
        assert each["maxSkew"] == 1
        is_required = each["whenUnsatisfiable"] == "DoNotSchedule"
        assert is_required == ("nodeTaintsPolicy" in each), "a drained machine would count as an empty one"
        assert is_required == (these.has_copies and each["topologyKey"] == "kubernetes.io/hostname")
        assert selects(each["labelSelector"]["matchLabels"], pods)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_pods_are_never_on_one_machine_where_the_values_say_so(variant: str) -> None:
    """Three shards that should have been on three machines were all on one: a skew of one machine is always met."""
    values = yaml.safe_load((DEPLOY / "helm" / "variants" / f"{variant}.yaml").read_text())
    pods = manifests(variant).pod
    if values.get("spread") != "hard":
        assert ("affinity" in pods["spec"]) == manifests(variant).has_copies
        return
    (term,) = pods["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert selects(term["labelSelector"]["matchLabels"], pods)


def test_what_a_pod_may_reach_and_who_may_reach_it_is_said_for_every_pod(these: Manifests) -> None:
    policies = [each["spec"] for each in these.all("NetworkPolicy")]
    for template in these.pod_templates():
        of_it = [each for each in policies if selects(each["podSelector"]["matchLabels"], template)]
        assert {kind for each in of_it for kind in each["policyTypes"]} == {"Ingress", "Egress"}


def test_a_monitor_finds_the_metrics_once_for_each_pod() -> None:
    these = manifests("ingress")
    spec = these.only("ServiceMonitor")["spec"]
    (endpoint,) = spec["endpoints"]
    found = [
        each["metadata"]["name"]
        for each in these.all("Service")
        if spec["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        and any(port["name"] == endpoint["port"] for port in each["spec"]["ports"])
    ]
    assert found == ["quarry-headless"]
    assert endpoint["scheme"] == "https"
    assert these.broker["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    # Prometheus' rules expect that the job is called so
    assert these.named("Service", "quarry-headless")["metadata"]["labels"][spec["jobLabel"]] == "quarry"


def test_each_copy_knows_its_shard_and_lies_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    these = manifests("warm-copies")
    shards, copies = these.all("StatefulSet")
    headless = these.named("Service", shards["spec"]["serviceName"])
    replication = next(each["port"] for each in headless["spec"]["ports"] if each["name"] == "replication")
    for index, pair in enumerate(zip(pod_names(shards), pod_names(copies), strict=True)):
        environment = these.environment(index)
        peers = dict(each.split("=") for each in json.loads(environment["QUARRY_REPLICATION_PEERS"]))
        name = headless["metadata"]["name"]
        assert peers == {pod: f"{pod}.{name}.quarry.svc.cluster.local:{replication}" for pod in pair}
        assert environment["QUARRY_REPLICATION_REPLICA"] == pair[0] == min(pair), "a new shard is first served there"
        assert loaded(these, index, tmp_path, monkeypatch).replication.others.keys() == {pair[1]}
    templates = [each["spec"]["template"] for each in (shards, copies)]
    for template in templates:
        [apart] = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["matchLabelKeys"] == [INDEX_LABEL]
        assert all(selects(apart["labelSelector"]["matchLabels"], each) for each in templates)
    [ours], [theirs] = (each["spec"]["containers"] for each in templates)
    assert ours == theirs, "whoever is promoted runs with the same settings"
    for template, other in (templates, reversed(templates)):
        for spread in template["spec"]["topologySpreadConstraints"]:
            assert selects(spread["labelSelector"]["matchLabels"], template)
            assert not selects(spread["labelSelector"]["matchLabels"], other), "primaries are spread, and copies are"
    assert not selects(copies["spec"]["selector"]["matchLabels"], templates[0])


def test_the_operator_knows_the_pods_by_the_labels_that_they_have() -> None:
    these = manifests("warm-copies")
    spec = json.loads(these.named("ConfigMap", "quarry-shards")["data"]["shard-set.json"])["spec"]
    assert spec["statefulSets"] == [each["metadata"]["name"] for each in these.all("StatefulSet")]
    assert spec["shards"] == these.shards["spec"]["replicas"]
    assert all(selects(spec["selector"], each["spec"]["template"]) for each in these.all("StatefulSet"))


def test_the_operator_reaches_the_admin_port_as_a_user() -> None:
    these = manifests("operator")
    template = these.only("Deployment")["spec"]["template"]
    spec = template["spec"]
    (container,) = spec["containers"]
    name, options = parsed(container["args"])
    assert name == "operator"
    host, port = split_address(options["admin"])
    service = these.named("Service", host.partition(".")[0])
    assert {"name": "admin", "port": port, "targetPort": "admin"} in service["spec"]["ports"]
    assert split_address(options["http"])[1] == container["ports"][0]["containerPort"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "QUARRY_CONTEXTS": "/run/quarry/contexts.toml",
        "QUARRY_CONTEXT": "operator",
    }
    (prepare,) = spec["initContainers"]
    assert prepare["command"][2:] == ["--keys", "/secrets", "/run/quarry"]
    assert volume(spec, mount_of(prepare, "/secrets")["name"])["secret"]["secretName"] == "quarry-operator"
    policy = these.named("NetworkPolicy", "quarry-operator")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], template)
    (to_brokers,) = [rule for rule in policy["egress"] if {"port": "admin"} in rule["ports"]]
    assert selects(to_brokers["to"][0]["podSelector"]["matchLabels"], these.pod)


def test_one_operator_runs_with_its_own_account() -> None:
    these = manifests("operator")
    spec = these.only("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert not selects(these.shards["spec"]["selector"]["matchLabels"], spec["template"])
    (subject,) = these.only("RoleBinding")["subjects"]
    assert subject["name"] == spec["template"]["spec"]["serviceAccountName"]
    assert subject["name"] != these.pod["spec"]["serviceAccountName"]
    assert these.only("RoleBinding")["roleRef"]["name"] == these.only("Role")["metadata"]["name"]


def test_a_pod_that_follows_fills_the_folder_that_its_broker_waits_for() -> None:
    these = manifests("follow-rocketmq")
    name, options = parsed(these.broker["args"])
    assert (name, options["after_cut_over"]) == ("serve", True)
    follower, pod = these.container("follow"), these.pod["spec"]
    name, options = parsed(follower["args"])
    assert name == "follow"
    assert options["rest_after_cut_over"], "Kubernetes starts a container again that ends"
    assert (options["cut_over"], options["until_caught_up"]) == (False, False)
    assert str(options["store"]) == these.settings["store"]["directory"] == STORE
    assert mount_of(follower, STORE) == mount_of(these.broker, STORE)
    assert pod["containers"][0]["name"] == "broker", "kubectl exec means the first one"
    assert follower["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert not {"readinessProbe", "livenessProbe", "ports"} & follower.keys(), (
        "the broker says whether the pod is ready"
    )
    (user,) = follower["env"]
    assert options["user"] == f"$({user['name']})"
    secret = volume(pod, mount_of(follower, str(options["secret_file"]))["name"])["secret"]
    assert secret["secretName"] == user["valueFrom"]["secretKeyRef"]["name"]
    assert [each["path"] for each in secret["items"]] == [options["secret_file"].name]


def test_the_migration_names_the_pod_that_follows() -> None:
    these = manifests("follow-rocketmq")
    migration = json.loads(these.named("ConfigMap", "quarry-shards")["data"]["migration.json"])
    assert [migration["spec"]["pod"]] == these.pod_names
    assert "cutOver" not in migration["spec"], "what kubectl patch has set is not taken back by the next upgrade"
    assert not list(jsonschema.Draft7Validator(schema_of("migrations")).iter_errors(migration))
    assert "migration.json" not in manifests("warm-copies").named("ConfigMap", "quarry-shards")["data"]
    operator = these.named("Deployment", "quarry-operator")["spec"]["template"]["spec"]["containers"][0]
    _, options = parsed(operator["args"])
    assert Path(options["migration"]).name == "migration.json"
    assert mount_of(operator, str(options["migration"]))["name"] == "shards"


def rights(these: Manifests, group: str, resource: str) -> set[str]:
    """Return the verbs that the operator may use."""
    rules = these.only("Role")["rules"]
    found = [each["verbs"] for each in rules if group in each["apiGroups"] and resource in each["resources"]]
    return {verb for verbs in found for verb in verbs}


@pytest.mark.parametrize("variant", ["operator", "warm-copies", "follow-rocketmq"])
def test_the_operator_may_read_every_kind_and_run_commands_where_it_has_to(variant: str) -> None:
    """An operator that cannot read one kind never becomes ready."""
    these = manifests(variant)
    for plural in DEFINITIONS:
        assert rights(these, "mq.quarry.io", plural) >= {"get", "list", "watch", "patch"}, plural
        assert rights(these, "mq.quarry.io", f"{plural}/status") == {"patch"}, plural
    runs = variant == "follow-rocketmq"
    assert rights(these, "", "pods/exec") == ({"get", "create"} if runs else set())
