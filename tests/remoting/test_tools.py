"""The unmodified `mqadmin` of RocketMQ 4 and 5, command by command, against one broker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of
from tests.remoting.test_java_clients import remoting_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"
NO_LOGS: Final = '<configuration><root level="OFF"/></configuration>'

COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    ("updateTopic -c DefaultCluster -t TAdm -r 4 -w 4", "success"),
    ("updateSubGroup -c DefaultCluster -g GAdm -r 3", "success"),
    ("clusterList", r"DefaultCluster +quarry +0 +127\.0\.0\.1:\d+ +V5_5_0"),
    ("clusterList -m", r"DefaultCluster +quarry"),
    ("topicList", r"^TAdm$"),
    ("topicList -c", r"DefaultCluster +TAdm"),
    ("topicClusterList -t TAdm", "DefaultCluster"),
    ("topicRoute -t TAdm", '"readQueueNums":4'),
    ("sendMessage -t TAdm -k key1 -c tagA -p hello -b quarry -i 1", "SEND_OK"),
    ("sendMessage -t TAdm -k key2 -p world -b quarry -i 2", "SEND_OK"),
    ("topicStatus -t TAdm", r"quarry +2 +0 +1 +20\d\d-"),
    ("updateTopicPerm -t TAdm -p 6 -c DefaultCluster", "success"),
    ("resetOffsetByTime -g GAdm -t TAdm -s 0", r"quarry +1 +0"),
    ("consumerProgress", r"GAdm +0 +OFFLINE"),
    ("consumerProgress -g GAdm", r"TAdm +quarry +1 +1 +0"),
    ("brokerStatus -b BROKER", r"putMessageTimesTotal +: \d"),
    ("haStatus -b BROKER", r"#SlaveNum\s+0"),
    ("brokerConsumeStats -b BROKER", "Diff Total: 2"),
    ("statsAll", r"TAdm +GAdm +2 "),
    ("getBrokerConfig -b BROKER", "brokerClusterName += +DefaultCluster"),
    ("printMsg -t TAdm -d true", "world"),
    ("printMsgByQueue -t TAdm -a quarry -i 2 -p true -d true", "world"),
    ("queryMsgByKey -t TAdm -k key1", "[0-9A-F]{32,56} +1 +0"),
    ("queryMsgByOffset -t TAdm -b quarry -i 2 -o 0", r"Keys: +\[key2\]"),
    ("queryCq -t TAdm -q 2 -i 0 -c 3 -b BROKER", "physicOffset"),
    ("consumeMessage -t TAdm -g GAdm -c 2", "print msg finished"),
    ("skipAccumulatedMessage -g GAdm -t TAdm", r"quarry +2 +1"),
    ("updateSubGroup -c DefaultCluster -g GAdm2", "success"),
    ("cloneGroupOffset -s GAdm -d GAdm2 -t TAdm -o true", "clone group offset success|reset offset"),
    ("checkMsgSendRT -t TAdm -a 3 -s 10", "Avg RT"),
    ("sendMsgStatus -b quarry -c 2 -s 10", "SEND_OK"),
    ("addWritePerm -b quarry -n NAMES", "OK"),
    ("getNamesrvConfig -n NAMES", "listenPort"),
    ("getConsumerConfig -g GAdm", "retryMaxTimes += +3"),
    ("exportMetadata -c DefaultCluster -f FOLDER", "export .* success"),
    ("setConsumeMode -c DefaultCluster -t TAdm -g GAdm -m POP -q 8", r"set consume mode to 127\.0\.0\.1:\d+ success"),
    ("setConsumeMode -b BROKER -t TAdm -g GAdm -m PULL", r"consume mode\[PULL\]"),
    ("allocateMQ -t TAdm -i 10.0.0.1,10.0.0.2", '"10.0.0.2"'),
    ("deleteSubGroup -c DefaultCluster -g GAdm", "success"),
    ("deleteTopic -c DefaultCluster -t TAdm", "success"),
)
"""Commands, and a pattern of what each prints. No command may print an exception."""

SINCE_5: Final = ("haStatus", "setConsumeMode")
"""Commands that RocketMQ 4 does not have."""

REFUSED: Final = (
    ("updateBrokerConfig -b BROKER -k a -v b", "quarry settings set"),
    ("wipeWritePerm -b quarry -n NAMES", "no other broker would take the messages"),
    ("updateKvConfig -s a -k b -v c", "keeps no settings of a name server"),
    ("consumerConnection -g GAdm", "not online"),
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of the name server's role and of the broker's."""
    directory = tmp_path_factory.mktemp("tools")
    names, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "remoting.listen": own,
        "remoting.names_listen": names,
        "network.rocketmq_ha": "127.0.0.1:0",
        "index.hash_files": True,
    }
    environment = {**DISK_OF_THE_TESTS, **environment_of(settings)}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    broker.start()
    yield names, own
    broker.close()


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
def test_mqadmin_does_what_it_does_with_rocketmq(
    addresses: tuple[str, str], version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names, own = addresses
    home: Path = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "logback_tools.xml").write_text(NO_LOGS)
    class_path = remoting_classes(version, tmp_path_factory)
    options = [f"-Drocketmq.namesrv.addr={names}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logUseSlf4j=true"]

    def said(command: str) -> str:
        words = command.replace("BROKER", own).replace("NAMES", names).replace("FOLDER", str(home)).split()
        java = ["java", "-XX:TieredStopAtLevel=1", *options, "-cp", class_path, MAIN, *words]
        done = subprocess.run(java, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    wrong = []
    for command, pattern in COMMANDS:
        if version.startswith("4") and command.startswith(SINCE_5):
            continue
        text = said(command)
        if not re.search(pattern, text, re.MULTILINE) or "Exception" in text:
            wrong.append(f"--- {command}\n{text[:2_000]}")
    wrong += [f"--- {command}\n{text[:2_000]}" for command, reason in REFUSED if reason not in (text := said(command))]
    assert not wrong, "\n".join(wrong)
