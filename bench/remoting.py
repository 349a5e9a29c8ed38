"""Compares what clients of the remoting protocol get from Quarry and from RocketMQ, on the same machine in turns.

The unmodified Java client of RocketMQ 5.5.0 sends and pulls; messages are flushed after the answer (`async`). Client
and server share the cores, so compare the server's CPU time per message rather than rates: it says what the server
could do if the client ran elsewhere. RocketMQ needs about a minute of load to reach its full speed.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from bench.beside_rocketmq import PEER, QUEUES, SIZES, require_peer
from bench.harness import Case, Options
from bench.java_load import GROUP, JavaLoad, Modes
from bench.peers.load import LoadGenerator
from bench.peers.quarry import Quarry
from bench.peers.rocketmq import RocketMQ
from bench.scratch_store import TOPIC
from quarry_mq.cli.demo import free_ports
from quarry_mq.client.admin import AdminClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.store.settings import Durability

QUESTION: Final = "What does the remoting client for Java get from Quarry, as a multiple of what it gets from RocketMQ?"

MODES: Final[Modes] = {
    "send": {"threads": 16, "body": 256},
    "pipeline": {"in_flight": 512, "body": 256},
    "pull": {"threads": 8, "batch": 32, "group": GROUP},
}

TITLES: Final = {
    "send": "send {body} B, 16 threads that wait",
    "pipeline": "send {body} B, 512 in flight",
    "pull": "pull 32, 8 threads",
}

BODIES: Final = (256, 1024)


class NameServer(NamedTuple):
    """The address of a server's name server, and the process whose CPU time counts."""

    endpoint: str
    pid: int


def run(options: Options) -> list[Case]:
    require_peer(options, "remoting")
    sizes, scratch = SIZES[options.scale], options.scratch
    names = f"127.0.0.1:{free_ports(1)[0]}"
    durability = Durability.ASYNC
    with (
        closing(Quarry(scratch / "quarry", durability, {"QUARRY_REMOTING_NAMES_LISTEN": names})) as quarry,
        closing(RocketMQ(scratch / "rocketmq", durability, topic=TOPIC, queues=QUEUES, groups=[GROUP])) as rocketmq,
        closing(LoadGenerator(scratch / "load")) as load,
    ):
        quarry.start()
        rocketmq.start()
        # with as many queues as on the peer: a topic made by a producer of remoting fills only half of them at first
        with AdminClient(Endpoint(quarry.admin)) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        ours, theirs = NameServer(names, quarry.pid), NameServer(rocketmq.names, rocketmq.pid)
        client = {"remoting": "yes"}
        aimed = JavaLoad(
            load,
            MODES,
            topic=TOPIC,
            sample_s=sizes.sample_s,
            seed=options.seed,
            access={each.endpoint: client for each in (ours, theirs)},
        )
        for server in (ours, theirs):
            aimed.wait_until_served(server)
        aimed.warm(theirs, sizes.warm_rocketmq_s)
        aimed.warm(ours, sizes.warm_quarry_s)

        def case(mode: str, **words: object) -> Case:
            samples, peer_samples, details = aimed.compare(mode, sizes.rounds, ours, theirs, **words)
            return Case(
                name=TITLES[mode].format(**words),
                unit="messages",
                peer=PEER,
                ours=samples,
                theirs=peer_samples,
                details={"durability": durability.value, **details, **words},
            )

        sends = [case(mode, body=body) for body in BODIES for mode in ("send", "pipeline")]
        return [*sends, case("pull")]
