"""`quarry pipeline replay` sends messages of a store once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quarry_mq.cli.contexts import endpoint_of_context
from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.arguments import Tags, Timeout, Tls, TlsCa, Topics, Where, broker_options
from quarry_mq.cli.pipeline.session import Conf, Master, damage_fields, spark_session, tell_damage
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.store.fs import PosixDisk

if TYPE_CHECKING:
    from quarry_mq.pipeline.replay import Replayed

PHASES = ("reading the log", "sending")

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint", metavar="HOST:PORT", help="Messaging address of the broker.", callback=endpoint_of_context
    ),
]
ToTopic = Annotated[
    str | None,
    typer.Option(
        "--to-topic",
        metavar="TOPIC",
        help="Send all messages to this topic. Default: each to its own topic.",
        show_default=False,
    ),
]


def replay(
    store: Store,
    *,
    to_topic: ToTopic = None,
    topic: Topics = None,
    tag: Tags = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    keep_compressed: Annotated[
        bool, typer.Option("--keep-compressed", help="Send compressed bodies as they are. Default: decompress them.")
    ] = False,
    endpoint: Endpoint = "127.0.0.1:8081",
    timeout: Timeout = 60,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Send messages of a store once more, to a live broker, on Spark.

    The messages keep body, tag, keys, message group and user properties, and have properties that tell where they come
    from. A repeated run sends the same message ids again, so that receivers can recognize repetitions by the id.

    A message that cannot be sent because of its content (its body cannot be uncompressed, its tag is illegal) is
    listed, and the others are sent.

    Exit status 0: it is done, 1: the log is damaged (all else is sent), or some messages could not be sent, 2: it could
    not run, or not to its end.
    """
    from_ms, to_ms = option_ms(since, "--since"), option_ms(until, "--until")
    options = broker_options(endpoint, timeout, tls, tls_ca)
    with spark_session("replay", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.replay import Target
        from quarry_mq.pipeline.replay import replay as replay_on
        from quarry_mq.pipeline.wanted import Wanted

        done = replay_on(
            spark,
            PosixDisk(),
            store,
            Target(options=options, topic=to_topic),
            Wanted(topics=tuple(topic or ()), tags=tuple(tag or ()), from_ms=from_ms, to_ms=to_ms, where=where),
            keeps_compressed=keep_compressed,
        )
    _report(done, as_json=as_json)
    tell_damage(done.damage)
    raise typer.Exit(Exit.FINDING if done.refused or done.damage.count else Exit.FINE)


def _report(done: Replayed, *, as_json: bool) -> None:
    """Print how many messages were sent, and which were refused."""
    if as_json:
        first = [{"place": place, "reason": reason} for place, reason in done.first_refused]
        say(
            json_line(
                {
                    "messages": done.messages,
                    "refused": done.refused,
                    "first": first,
                    **damage_fields(done.damage),
                }
            )
        )
    else:
        say(f"{done.messages:,} messages sent" + (f", {done.refused:,} not" if done.refused else ""))
        for place, reason in done.first_refused:
            say(f"{word(place, err=True)}: {word(reason, err=True)}", err=True)
