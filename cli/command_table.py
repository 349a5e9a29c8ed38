"""Lists all commands of `quarry` and where they are implemented, in the order of `quarry --help`.

A command is imported when it is used (`cli.command_tree`). `quarry --help` and the completion of the first word use
only this list, and import no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command or a family of commands."""

    place: str
    """`module:name` of the command's function, or of the family's `typer.Typer`."""
    summary: str
    """The first paragraph of the function's docstring; for a family, its whole help."""
    more: Mapping[str, str] = {}
    """Commands of the family that are in modules of their own: `module:name` by the command's word."""


COMMANDS: Final[Mapping[str, Entry]] = {
    "serve": Entry("quarry_mq.cli.serve:serve", "Run a broker until it is told to stop (Ctrl-C, SIGTERM)."),
    "doctor": Entry(
        "quarry_mq.cli.doctor.command:doctor",
        "Look for what is wrong with a broker, its settings, its store and its machine, and say what to do about it.",
    ),
    "produce": Entry(
        "quarry_mq.cli.online.messages.produce:produce",
        "Send a message, or one for each line of a file, and show its id and where it went.",
    ),
    "consume": Entry("quarry_mq.cli.online.messages.consume:consume", "Receive messages, show and acknowledge them."),
    "tail": Entry(
        "quarry_mq.cli.online.messages.consume:tail",
        "Show messages as they come, until Ctrl-C or SIGTERM. Takes nothing away from other groups.",
    ),
    "browse": Entry(
        "quarry_mq.cli.online.messages.browse:browse",
        "Show the messages of a topic, the newest first unless asked otherwise. No group is made, and none "
        "loses anything.",
    ),
    "storage": Entry(
        "quarry_mq.cli.online.maintenance.storage:storage",
        "Show how full a broker's disk is, what lies there, since when, and what goes next.",
    ),
    "pending": Entry(
        "quarry_mq.cli.online.maintenance.storage:pending",
        "Show what waits: delayed messages for their time, transactions for their producer's word.",
    ),
    "backup": Entry(
        "quarry_mq.cli.local.backup:backup",
        "Add a backup to the folder DEST: of a store that no broker runs on, or with --admin of a live broker.",
    ),
    "expire": Entry(
        "quarry_mq.cli.online.maintenance.expire:expire",
        "Delete what is past its retention from a live broker's commit log, whatever the hour.",
    ),
    "query": Entry(
        "quarry_mq.cli.local.query:query", "Show the messages of a topic that have a key, the newest first."
    ),
    "queues": Entry(
        "quarry_mq.cli.local.queues:queues", "List every queue with its first offset and the next free one."
    ),
    "lag": Entry(
        "quarry_mq.cli.online.groups.lag:lag",
        "Show how many messages a group has before it, in each topic that it reads and in all (`*`).",
    ),
    "overview": Entry(
        "quarry_mq.cli.online.broker.overview:overview",
        "Show a broker at a glance: what goes through it, what waits, how full its disk is, and what is wrong.",
    ),
    "history": Entry(
        "quarry_mq.cli.online.broker.overview:history",
        "Show the figures of the last hour, a line for each series (docs/admin-calls.md).",
    ),
    "stats": Entry(
        "quarry_mq.cli.online.broker.stats:stats",
        "Show messages per second of late, open connections, and clients by what they do.",
    ),
    "top": Entry(
        "quarry_mq.cli.online.top.command:top",
        "Watch a broker in the terminal: rates, stages, lag, topics, groups, storage, migration, jobs, members.",
    ),
    "broker": Entry(
        "quarry_mq.cli.online.broker.broker:broker",
        "Show a broker's name, version, address and store, and how far its commit log has got.",
    ),
    "call": Entry(
        "quarry_mq.cli.online.broker.call:call",
        "Make a call of the admin port (docs/admin-calls.md) with a request in protobuf's JSON, and show "
        "what it answers.",
    ),
    "ping": Entry(
        "quarry_mq.cli.online.ping.command:ping",
        "Measure how long a broker takes to answer, on its messaging port and its admin port, or for a message.",
    ),
    "bench": Entry(
        "quarry_mq.cli.online.bench.command:bench",
        "Put load on a broker as clients do, and show what it did: messages, bytes, times and errors.",
    ),
    "console": Entry(
        "quarry_mq.cli.local.console:console", "Serve the console for a broker on 127.0.0.1, until Ctrl-C."
    ),
    "decode": Entry("quarry_mq.cli.offline.decode:decode", "Show records of the commit log, every check made."),
    "units": Entry(
        "quarry_mq.cli.offline.queues:units",
        "List the entries of one queue: where each record lies, its size, tags code and store time.",
    ),
    "verify": Entry(
        "quarry_mq.cli.offline.verify:verify",
        "Compare commit log, consume queues, key index and metadata of a store or a backup, and tell where "
        "they differ.",
    ),
    "recover": Entry(
        "quarry_mq.cli.offline.recover:recover",
        "Recover a store as a start of the broker does, and leave it as a clean stop does.",
    ),
    "migrate": Entry(
        "quarry_mq.cli.offline.migrate:migrate",
        "Move the consume queues of a store to RocksDB or to RocketMQ's files, at one go.",
    ),
    "export-metadata": Entry(
        "quarry_mq.cli.offline.export_metadata:export_metadata",
        "Write topics, groups, offsets and how far delayed messages have got, so that RocketMQ can go on with a store.",
    ),
    "restore": Entry(
        "quarry_mq.cli.offline.restore:restore",
        "Make a store from a backup. All of the backup is checked before anything is written.",
    ),
    "completion": Entry(
        "quarry_mq.cli.completion:completion",
        "Print a script that lets a shell complete commands, options, and the names of contexts, topics and groups.",
    ),
    "schema": Entry(
        "quarry_mq.cli.schemas.command:schema", "Print the JSON Schema of the lines that a command prints with --json."
    ),
    "topic": Entry(
        "quarry_mq.cli.online.topics.topics:commands",
        "Topics of a live broker.",
        {
            "readers": "quarry_mq.cli.online.groups.subscriptions:readers",
            "route": "quarry_mq.cli.online.topics.topic_details:route",
            "status": "quarry_mq.cli.online.topics.topic_details:status",
            "spans": "quarry_mq.cli.online.maintenance.storage:spans",
            "top": "quarry_mq.cli.online.topics.tops:top_topics",
        },
    ),
    "group": Entry(
        "quarry_mq.cli.online.groups.groups:commands",
        "Consumer groups of a live broker.",
        {
            "consumers": "quarry_mq.cli.online.groups.subscriptions:consumers",
            "subscriptions": "quarry_mq.cli.online.groups.subscriptions:subscriptions",
            "times": "quarry_mq.cli.online.groups.subscriptions:times",
            "forget": "quarry_mq.cli.online.groups.subscriptions:forget",
            "top": "quarry_mq.cli.online.topics.tops:top_groups",
        },
    ),
    "dead-letters": Entry(
        "quarry_mq.cli.online.groups.dead_letters:commands", "Messages that a group was given as often as it allows."
    ),
    "dlq": Entry("quarry_mq.cli.online.groups.dead_letters:commands", "The same as dead-letters."),
    "lite": Entry("quarry_mq.cli.online.topics.lite:commands", "Lite topics of a live broker."),
    "client": Entry(
        "quarry_mq.cli.online.groups.clients:commands",
        "Clients of a live broker.",
        {
            "show": "quarry_mq.cli.online.groups.consumer:show",
            "stack": "quarry_mq.cli.online.groups.consumer:stack",
            "verify-message": "quarry_mq.cli.online.groups.consumer:verify_message",
        },
    ),
    "index": Entry("quarry_mq.cli.local.index:commands", "Files of the key index, of a store or of a live broker."),
    "message": Entry(
        "quarry_mq.cli.online.messages.message:commands",
        "Single messages.",
        {"send": "quarry_mq.cli.online.messages.message_send:send"},
    ),
    "job": Entry(
        "quarry_mq.cli.online.maintenance.jobs:commands",
        "Long work of a live broker, one job after the other, kept over restarts: resets, resends, verifications.",
    ),
    "migration": Entry(
        "quarry_mq.cli.online.maintenance.migration:commands",
        "Move the consume queues of a live broker from files to RocksDB, and back (docs/migration.md).",
    ),
    "verification": Entry(
        "quarry_mq.cli.online.maintenance.verification:commands",
        "Verify the store of a live broker: commit log, queue files, RocksDB, offsets and metadata.",
    ),
    "settings": Entry(
        "quarry_mq.cli.online.broker.settings:commands", "Settings that are changed while a broker runs."
    ),
    "cluster": Entry("quarry_mq.cli.online.broker.cluster:commands", "Brokers that are one cluster."),
    "user": Entry("quarry_mq.cli.online.broker.users:commands", "Users of a live broker."),
    "acl": Entry("quarry_mq.cli.online.broker.rules:commands", "What users of a live broker may do."),
    "security": Entry("quarry_mq.cli.offline.security:commands", "Keys that secrets are sealed with."),
    "pipeline": Entry("quarry_mq.cli.pipeline:COMMANDS", "Work over whole stores on Spark."),
    "context": Entry(
        "quarry_mq.cli.context_commands:commands", "Where brokers are, and how and as whom they are asked."
    ),
}
