"""The files in deploy/spark/ agree with each other, with the Spark that is installed, and with the manual.

No container runtime is needed, and none was asked: what an image does when it runs is not told here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pyspark.sql import SparkSession

import quarry_mq.pipeline.stats
from quarry_mq.cli.pipeline import COMMANDS, submit
from quarry_mq.pipeline.session import VERSION_MINIMUM, find_java
from tests.cli.spark_runner import SPARK_HOME
from tests.conftest import GoldenStore
from tests.pipeline.conftest import TIMEOUT_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "spark"
MANUAL = (ROOT / "docs" / "spark-on-kubernetes.md").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def kustomized() -> list[dict[str, Any]]:
    (kustomization,) = documents("kustomization.yaml")
    return [each for name in kustomization["resources"] for each in documents(name)]


def only(kind: str) -> dict[str, Any]:
    (found,) = (each for each in kustomized() if each["kind"] == kind)
    return found


def properties() -> dict[str, str]:
    lines = (DEPLOY / "spark.properties").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


def submits() -> list[list[str]]:
    """The documented commands, as a shell takes them apart."""
    blocks = re.findall(r"^```console\n\$ (spark-submit .+?)^```$", MANUAL, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


def settings() -> dict[str, str]:
    """Every setting that is documented: of the file and of `--conf`."""
    found = properties()
    for words in submits():
        given = (words[at + 1] for at, word in enumerate(words) if word == "--conf")
        found |= dict(each.split("=", 1) for each in given)
    return found


def test_every_file_is_named_and_every_named_file_is_there() -> None:
    (kustomization,) = documents("kustomization.yaml")
    others = {"kustomization.yaml", "pod-template.yaml", "export-job.yaml"}
    assert {path.name for path in DEPLOY.glob("*.yaml")} == {*kustomization["resources"], *others}
    for link in re.findall(r"\]\(\.\./(deploy/spark/[^)]+)\)", MANUAL):
        assert (ROOT / link).is_file(), link


def test_the_driver_is_who_the_role_is_for() -> None:
    (kustomization,) = documents("kustomization.yaml")
    binding, role, account = only("RoleBinding"), only("Role"), only("ServiceAccount")
    namespace = only("Namespace")["metadata"]["name"]
    assert kustomization["namespace"] == properties()["spark.kubernetes.namespace"] == namespace
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": namespace}
    ]
    assert binding["roleRef"] == {
        "apiGroup": role["apiVersion"].partition("/")[0],
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    assert properties()["spark.kubernetes.authenticate.driver.serviceAccountName"] == account["metadata"]["name"]
    (rule,) = role["rules"]
    assert {"pods", "configmaps", "services"} <= set(rule["resources"])
    assert {"create", "get", "list", "watch", "delete", "deletecollection"} <= set(rule["verbs"])
    assert "*" not in {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}


def test_driver_and_executors_mount_claimed_volumes_under_the_documented_paths() -> None:
    (pod,) = documents("pod-template.yaml")
    (container,) = pod["spec"]["containers"]
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    claimed = {each["metadata"]["name"]: each for each in kustomized() if each["kind"] == "PersistentVolumeClaim"}
    assert mounts.keys() == claims.keys()
    assert set(claims.values()) == set(claimed)
    assert all(each["spec"]["accessModes"] == ["ReadWriteMany"] for each in claimed.values())
    templates = {properties()[f"spark.kubernetes.{role}.podTemplateFile"] for role in ("driver", "executor")}
    assert templates == {(DEPLOY / "pod-template.yaml").relative_to(ROOT).as_posix()}
    paths = [word for words in submits() for word in words if word.startswith("/")]
    assert paths
    assert all(any(path.startswith(f"{mount}/") for mount in mounts.values()) for path in paths), paths


def test_nobody_is_root() -> None:
    (pod,) = documents("pod-template.yaml")
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, flags=re.MULTILINE)
    assert f"useradd --uid {user} " in DOCKERFILE
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"]
    assert {security["runAsUser"], security["runAsGroup"], security["fsGroup"]} == {int(user)}
    assert f"user {user}" in MANUAL


def test_the_image_has_what_the_project_asks_for() -> None:
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=python:(\d+\.\d+)-", DOCKERFILE, flags=re.MULTILINE)
    assert python in SpecifierSet(PROJECT["requires-python"])
    (java,) = re.findall(r"openjdk-(\d+)-jre-headless", DOCKERFILE)
    assert int(java) >= VERSION_MINIMUM
    assert "/src/locks/spark.txt" in DOCKERFILE
    tag = f"quarry-spark:{PROJECT['version']}"
    assert properties()["spark.kubernetes.container.image"] == tag
    assert f"--tag {tag} " in DOCKERFILE
    assert f"--tag {tag} " in MANUAL


def test_the_image_is_made_of_all_packages_and_of_nothing_else_than_may_be_sent() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    [package] = wheel["packages"]
    packages = {package, *(each.name for each in (ROOT / package).iterdir() if each.is_symlink())}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
        for word in line.split()
    }
    own = {"deploy/spark/entrypoint.sh", "deploy/locks/build.txt", "deploy/locks/spark.txt"}
    assert copied == {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *packages, *own}
    assert all((ROOT / each).exists() for each in copied)
    sent = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert sent == copied
    template = Path(quarry_mq.pipeline.stats.__file__).parent.relative_to(ROOT) / "report.html.jinja"
    assert template.parts[0] == package


def test_documented_commands_are_those_of_quarry() -> None:
    names = {command.callback.__name__ for command in COMMANDS.registered_commands if command.callback}
    (target,) = set(re.findall(r"(/opt/quarry/submit\.py)", DOCKERFILE))
    assert len(submits()) == 3
    for words in submits():
        assert words[words.index("--properties-file") + 1] == "deploy/spark/spark.properties"
        at = words.index(f"local://{target}")
        assert words[at + 1] in names


def test_the_job_on_backups_agrees_with_the_chart_and_the_image() -> None:
    (job,) = documents("export-job.yaml")
    kubernetes_validate.validate(job, "1.34", strict=True)
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "quarry" / "values.yaml").read_text())["backup"]
    pod = job["spec"]["template"]["spec"]
    download, export = pod["initContainers"]
    (upload,) = pod["containers"]
    assert download["image"] == upload["image"] == values["rcloneImage"]
    for each in (download, upload):
        assert each["envFrom"] == [{"secretRef": {"name": values["rcloneSecret"]}}]
    assert export["image"] == properties()["spark.kubernetes.container.image"]
    names = {command.callback.__name__ for command in COMMANDS.registered_commands if command.callback}
    quarry, pipeline, command, store, target = export["args"][:5]
    assert (quarry, pipeline, command in names) == ("quarry", "pipeline", True)
    assert store in download["args"][0]
    assert target in upload["args"][0]
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, flags=re.MULTILINE)
    assert {pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}


def test_the_hadoop_module_is_of_the_version_that_spark_ships() -> None:
    (jar,) = (SPARK_HOME / "jars").glob("hadoop-client-api-*.jar")
    (version,) = set(re.findall(r"org\.apache\.hadoop:hadoop-aws:([\d.]+)", MANUAL))
    assert jar.name == f"hadoop-client-api-{version}.jar"
    with zipfile.ZipFile(jar) as archive:
        known = archive.read("core-default.xml").decode()
    prefix = "spark.hadoop."
    ours = [name.removeprefix(prefix) for name in settings() if name.startswith(prefix)]
    assert len(ours) == 2
    assert all(f"<name>{name}</name>" in known for name in ours)


def scala_object(spark: SparkSession, name: str) -> Any:
    """One of Spark's own, which makes the settings that belong to it known."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.java.lang.Class.forName(f"org.apache.spark.{name}$").getField("MODULE$").get(None)


def test_every_documented_setting_is_one_of_spark(spark: SparkSession) -> None:
    for name in ("internal.config.package", "internal.config.Python"):
        scala_object(spark, name)
    kubernetes, entries = (scala_object(spark, name) for name in ("deploy.k8s.Config", "internal.config.ConfigEntry"))
    prefixes = (
        "spark.hadoop.",
        kubernetes.KUBERNETES_DRIVER_SECRET_KEY_REF_PREFIX(),
        kubernetes.KUBERNETES_EXECUTOR_SECRET_KEY_REF_PREFIX(),
    )
    assert entries.findEntry("spark.kubernetes.no.such.setting") is None
    unknown = [name for name in settings() if entries.findEntry(name) is None and not name.startswith(prefixes)]
    assert not unknown


# -- the entry point, run without an image


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment in which each of the programs prints its arguments, one on each line; `tini` runs what follows."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\necho {name}\nprintf "%s\\n" "$@"\n')
    (folder / "tini").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SPARK_HOME": "/opt/spark"}


def entrypoint(*arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [DEPLOY / "entrypoint.sh", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_driver_is_a_submission_by_its_pod(tmp_path: Path) -> None:
    environment = {**programs(tmp_path / "bin", "spark-submit"), "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///a file.py", "stats", "/store"]
    assert entrypoint("driver", *arguments, **environment) == [
        "spark-submit",
        *("--deploy-mode", "client"),
        *("--conf", "spark.driver.bindAddress=10.0.0.7"),
        *arguments,
    ]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.usefixtures("java")
def test_what_a_driver_s_pod_starts_runs_the_job(tmp_path: Path, golden_store: GoldenStore) -> None:
    """With the arguments that Spark gives to the pod, but for the master."""
    conf = tmp_path / "spark.properties"
    conf.write_text("spark.master local[2]\nspark.ui.enabled false\nspark.sql.shuffle.partitions 2\n")
    environment = programs(tmp_path / "bin")
    lines = entrypoint(
        *("driver", "--properties-file", str(conf), "--class", "org.apache.spark.deploy.PythonRunner"),
        *(f"local://{submit.__file__}", "stats", str(golden_store("rocks-clean") / "store"), "--json"),
        PATH=f"{SPARK_HOME / 'bin'}:{environment['PATH']}",
        SPARK_HOME=str(SPARK_HOME),
        SPARK_DRIVER_BIND_ADDRESS="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        **{name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ},
    )
    assert json.loads(lines[-1])["topicCount"] == 12


def executor_arguments(tmp_path: Path) -> list[str]:
    names = ("EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "EXECUTOR_POD_NAME")
    return entrypoint(
        "executor",
        **programs(tmp_path / "bin", "java"),
        **{f"SPARK_{name}": f"the {name}" for name in names},
        SPARK_DRIVER_URL="spark://driver",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_MEMORY="4096m",
        SPARK_JAVA_OPT_0="-Dfirst=a b",
        SPARK_JAVA_OPT_1="-Dsecond",
        SPARK_CLASSPATH="/extra/*",
    )


def test_an_executor_is_told_everything_by_its_environment(tmp_path: Path) -> None:
    words = executor_arguments(tmp_path)
    assert words[:8] == [
        *("java", "-Dfirst=a b", "-Dsecond", "-Xms4096m", "-Xmx4096m"),
        *("-cp", "/extra/*:/opt/spark/conf:/opt/spark/jars/*", EXECUTOR_CLASS),
    ]
    assert dict(zip(words[8::2], words[9::2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "the EXECUTOR_ID",
        "--cores": "the EXECUTOR_CORES",
        "--app-id": "the APPLICATION_ID",
        "--hostname": "the EXECUTOR_POD_IP",
        "--resourceProfileId": "0",
        "--podName": "the EXECUTOR_POD_NAME",
    }


@pytest.mark.usefixtures("java")
def test_spark_knows_the_options_that_an_executor_is_given(tmp_path: Path) -> None:
    """Its own list of them, which it prints when it is given another one."""
    command = [str(find_java()), "-cp", f"{SPARK_HOME}/jars/*", EXECUTOR_CLASS, "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    options = {word for word in executor_arguments(tmp_path) if word.startswith("--")}
    assert options <= set(re.findall(r"--\w[\w-]*", done.stdout + done.stderr))


def test_the_environment_is_that_which_spark_sets(spark: SparkSession) -> None:
    constants = scala_object(spark, "deploy.k8s.Constants")
    names = [method.getName() for method in constants.getClass().getMethods()]
    known = {getattr(constants, name)() for name in names if name.startswith("ENV_")}
    script = (DEPLOY / "entrypoint.sh").read_text()
    used = set(re.findall(r"\$\{?(SPARK_\w+)", script)) - {"SPARK_HOME"}
    assert used <= known
    assert "SPARK_JAVA_OPT_" in known


def test_jinja_is_required_where_the_report_is_made() -> None:
    required = {Requirement(each).name for each in PROJECT["optional-dependencies"]["pipeline"]}
    assert {"jinja2", "pyspark", "pyarrow"} <= required
