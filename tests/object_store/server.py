"""An S3 server in this process, by other people than wrote the client."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import count
from typing import Final

_number = count(1)
REGION: Final = "eu-central-1"


class S3Server:
    """Listens on 127.0.0.1. Buckets live as long as the process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def new_bucket(self) -> str:
        """The name of one that is empty."""
        name = f"bucket-{next(_number)}"
        connection = HTTPConnection("127.0.0.1", self.port)
        place = (
            f"<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>"
        )
        connection.request("PUT", f"/{name}", body=place)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()
        return name


def options(port: int) -> dict[str, str]:
    """`index.upload_options` for a server at this port."""
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": REGION,
        "access_key_id": "someone",
        "secret_access_key": "secret",
    }


@contextmanager
def serving() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer  # half a second, for those who need it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield S3Server(port)
    finally:
        server.stop()
