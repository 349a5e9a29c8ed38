"""The samples of `rocketmq-spring`, unmodified, with the released starter against one broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of
from tests.e2e.languages import checkout, java_classes
from tests.remoting.client import prepare
from tests.remoting.spring_samples import Sample, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VERSION: Final = "2.3.1"
SAMPLES: Final = "rocketmq-spring-boot-samples"
PACKAGE: Final = "org.apache.rocketmq.samples.springboot"
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>quarry</groupId>
  <artifactId>spring-samples</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-spring-boot-starter</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

TOPICS: Final = (
    "string-topic", "order-paid-topic", "message-ext-topic", "spring-transaction-topic", "user-topic",
    "bytesRequestTopic", "stringRequestTopic", "objectRequestTopic", "genericRequestTopic",
)  # fmt: skip
GROUPS: Final = (
    "user_consumer", "string_trans_consumer", "string_consumer", "string_consumer_newns", "order-paid-consumer",
    "stringRequestConsumer", "bytesRequestConsumer", "objectRequestConsumer", "genericRequestConsumer",
    "rocketmq-consume-demo-message-ext-consumer",
)  # fmt: skip


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    """The name server address of a broker that has the topics and the groups of the samples."""
    address, own = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"remoting.listen": own, "remoting.names_listen": address, "transactions.check_after_ms": 2_000}
    environment = {**DISK_OF_THE_TESTS, **environment_of(settings)}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment)
    broker.start()
    prepare(own, TOPICS, GROUPS, queues=4)
    yield address
    broker.assert_no_stack_trace()
    broker.close()


def sample(name: str, program: str, directory: Path, *options: str) -> AbstractContextManager[Sample]:
    project = directory / name
    source = checkout("rocketmq-spring", f"rocketmq-spring-all-{VERSION}") / SAMPLES / name / "src" / "main"
    shutil.copytree(source / "java", project / "src")
    (project / "pom.xml").write_text(POM)
    class_path = f"{source / 'resources'}:{java_classes(name, project)}"
    return running(class_path, f"{PACKAGE}.{program}", directory / f"{name}.out", *options)


def test_the_samples_of_spring(names: str, tmp_path: Path) -> None:
    named = [f"--rocketmq.name-server={names}", f"--demo.rocketmq.myNameServer={names}"]
    named.append(f"--demo.rocketmq.extNameServer={names}")
    consumers = sample("rocketmq-consume-demo", "ConsumerApplication", tmp_path, *named)
    producers = sample("rocketmq-produce-demo", "ProducerApplication", tmp_path, *named)
    with consumers as consumer:
        consumer.says("receive from extRocketMQTemplate")
        with producers as producer:
            producer.says(
                "async onSuccess SendResult",
                "syncSend topic message-ext-topic tag tag1",
                "Batch messages orderly to queue",
                "send request string and receive reply string",
                "send request byte[] and receive reply message content",
                "and receive User{userName='replyUserName'",
                "send request generic and receive ProductWithPayload",
                "send user object and receive User",
            )
            producer.says(
                "extRocketMQTemplate.syncSend1 to topic string-topic sendResult=SendResult [sendStatus=SEND_OK"
            )
            producer.says("checkLocalTransaction is executed once", "and return COMMIT", times=3)
            consumer.says(
                "StringConsumerNewNS received: Hello, World! \n",
                "StringConsumerNewNS received: Hello, World!2222",
                *(f"StringConsumerNewNS received: Hello RocketMQ Batch Msg#{number} " for number in range(40)),
                "age: 18 ; name: Kitty",
                "age: 21 ; name: Lester",
                "[orderId : T_001]",
                "body:I'm from tag0",
                "body:I'm from tag1",
                "StringTransactionalConsumer received: rocketMQTemplate transactional message 0",
                "StringTransactionalConsumer received: extRocketMQTemplate transactional message 9",
            )
