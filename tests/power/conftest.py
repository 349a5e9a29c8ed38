"""File systems of their own for brokers, and brokers on them. All is gone when a test ends, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of
from tests.power.image import Ext4Image

MakeImage = Callable[[int], Ext4Image]
MakeBroker = Callable[..., Broker]


@pytest.fixture
def make_image(tmp_path: Path) -> Iterator[MakeImage]:
    """`make_image(256)` is an empty mounted ext4 of 256 MiB."""
    images: list[Ext4Image] = []

    def make(mebibytes: int) -> Ext4Image:
        number = len(images)
        image = Ext4Image(tmp_path / f"image-{number}", tmp_path / f"mounted-{number}", mebibytes)
        images.append(image)
        return image

    yield make
    for image in images:
        image.close()


@pytest.fixture
def make_broker(tmp_path: Path, make_image: MakeImage) -> Iterator[MakeBroker]:
    """`make_broker(store, settings)` is not started yet. Its end comes before that of the images."""
    brokers: list[Broker] = []

    def make(store: Path, settings: dict[str, object]) -> Broker:
        broker = Broker(store, logs=tmp_path / f"logs-{len(brokers)}", environment=environment_of(settings))
        brokers.append(broker)
        return broker

    yield make
    for broker in brokers:
        broker.close()
