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


SECTIONS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Run": {
        "serve": Entry("quarry_mq.cli.serve:serve", "Run a broker until it is told to stop (Ctrl-C, SIGTERM)."),
        "demo": Entry(
            "quarry_mq.cli.local.demo:demo",
            "Send and receive a message on a temporary broker, or with --keep run a broker full of life to look at.",
        ),
        "console": Entry(
            "quarry_mq.cli.local.console:console", "Serve the console for a broker on 127.0.0.1, until Ctrl-C."
        ),
        "follow": Entry(
            "quarry_mq.cli.local.follow:follow",
            "Follow a live RocketMQ master: take over its log as it grows, and its topics, groups and positions.",
        ),
        "operator": Entry(
            "quarry_mq.cli.operator.command:operator",
            "Bring topics, groups, users and access rules of brokers to what custom resources of Kubernetes declare.",
        ),
    },
    "Messages": {
        "produce": Entry(
            "quarry_mq.cli.online.messages.produce:produce",
            "Send a message, or one for each line of a file, and show its id and where it is stored.",
        ),
        "consume": Entry("quarry_mq.cli.online.messages.consume:consume", "Receive, show and acknowledge messages."),
        "tail": Entry(
            "quarry_mq.cli.online.messages.consume:tail",
            "Show messages as they arrive, until Ctrl-C or SIGTERM. Other groups are not affected.",
        ),
        "browse": Entry(
            "quarry_mq.cli.online.messages.browse:browse",
            "Show the messages of a topic, the newest first by default. No group is created, and no group is affected.",
        ),
        "query": Entry(
            "quarry_mq.cli.local.query:query", "Show the messages of a topic that have a key, the newest first."
        ),
        "message": Entry(
            "quarry_mq.cli.online.messages.message:commands",
            "Single messages.",
            {"send": "quarry_mq.cli.online.messages.produce:send"},
        ),
        "dead-letters": Entry(
            "quarry_mq.cli.online.groups.dead_letters:commands",
            "Dead letters: messages that a group received as often as it allows without acknowledging them.",
        ),
        "dlq": Entry("quarry_mq.cli.online.groups.dead_letters:commands", "The same as dead-letters."),
        "pending": Entry(
            "quarry_mq.cli.online.maintenance.storage:pending",
            "Show pending messages: delayed messages that are not due, and transactions that are not committed or "
            "rolled back.",
        ),
    },
    "Look": {
        "doctor": Entry(
            "quarry_mq.cli.doctor.command:doctor",
            "Check a broker, its settings, its store and its machine for problems, and suggest fixes.",
        ),
        "overview": Entry(
            "quarry_mq.cli.online.broker.overview:overview",
            "Show the state of a broker at a glance: rates, lag, disk usage and problems.",
        ),
        "top": Entry(
            "quarry_mq.cli.online.top.command:top",
            "Watch a broker in the terminal: rates, stages, lag, topics, groups, storage, migration, jobs, members.",
        ),
        "lag": Entry(
            "quarry_mq.cli.online.groups.consumer:lag",
            "Show the lag of a group in each topic that it reads, and in all of them (`*`).",
        ),
        "history": Entry(
            "quarry_mq.cli.online.broker.overview:history",
            "Show the stats of the last hour, one line per series, of a broker, a topic or a group.",
        ),
        "stats": Entry(
            "quarry_mq.cli.online.broker.stats:stats",
            "Show recent messages per second, open connections, and clients by kind.",
        ),
        "broker": Entry(
            "quarry_mq.cli.online.broker.broker:broker",
            "Show a broker's name, version, address and store, and the size of its commit log.",
        ),
        "client": Entry(
            "quarry_mq.cli.online.groups.clients:commands",
            "Clients of a live broker.",
            {
                "show": "quarry_mq.cli.online.groups.consumer:show",
                "stack": "quarry_mq.cli.online.groups.consumer:stack",
                "verify-message": "quarry_mq.cli.online.groups.consumer:verify_message",
            },
        ),
        "storage": Entry(
            "quarry_mq.cli.online.maintenance.storage:storage",
            "Show how full a broker's disk is, what uses the space, how old the messages are, and which expire next.",
        ),
        "queues": Entry("quarry_mq.cli.local.queues:queues", "List all queues with their min and max offsets."),
        "ping": Entry(
            "quarry_mq.cli.online.ping.command:ping",
            "Measure how long a broker takes to answer on its messaging port and its admin port, or to store a "
            "message.",
        ),
        "bench": Entry(
            "quarry_mq.cli.online.bench.command:bench",
            "Load a broker like real clients do, and show the results: messages, bytes, latencies and errors.",
        ),
    },
    "Administer": {
        "topic": Entry(
            "quarry_mq.cli.online.topics.topics:commands",
            "Topics of a live broker.",
            {
                "readers": "quarry_mq.cli.online.groups.subscriptions:readers",
                "route": "quarry_mq.cli.online.topics.topics:route",
                "status": "quarry_mq.cli.online.topics.topics:status",
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
        "lite": Entry("quarry_mq.cli.online.topics.lite:commands", "Lite topics of a live broker."),
        "settings": Entry(
            "quarry_mq.cli.online.broker.settings:commands", "Settings that can be changed while a broker runs."
        ),
        "user": Entry("quarry_mq.cli.online.broker.users:commands", "Users of a live broker."),
        "acl": Entry("quarry_mq.cli.online.broker.rules:commands", "Access rules of users of a live broker."),
        "cluster": Entry("quarry_mq.cli.online.broker.cluster:commands", "Members of a cluster of brokers."),
        "replica": Entry(
            "quarry_mq.cli.local.replica:commands",
            "Copies of a broker's store on other machines.",
            {"list": "quarry_mq.cli.online.broker.replicas:list_replicas"},
        ),
        "job": Entry(
            "quarry_mq.cli.online.maintenance.job_progress:commands",
            "Long-running jobs of a live broker, run one after the other and continued after restarts: resets, "
            "resends, verifications.",
        ),
        "expire": Entry(
            "quarry_mq.cli.online.maintenance.expire:expire",
            "Delete expired messages from a live broker's commit log now, regardless of the configured hours.",
        ),
        "backup": Entry(
            "quarry_mq.cli.local.backup:backup",
            "Add a backup to the folder DEST: of a stopped store, or with --admin of a live broker.",
        ),
        "index": Entry("quarry_mq.cli.local.index:commands", "Key index files, of a store or of a live broker."),
        "migration": Entry(
            "quarry_mq.cli.online.maintenance.migration:commands",
            "Move the consume queues of a live broker from files to RocksDB, and back.",
        ),
        "verification": Entry(
            "quarry_mq.cli.online.maintenance.verification:commands",
            "Verify the store of a live broker: commit log, queue files, RocksDB, offsets and metadata.",
        ),
        "call": Entry(
            "quarry_mq.cli.online.broker.call:call",
            "Make a call of the admin port with a request in protobuf's JSON, and show the answer.",
        ),
    },
    "Stopped stores": {
        "verify": Entry(
            "quarry_mq.cli.offline.verify:verify",
            "Compare commit log, consume queues, key index and metadata of a store or a backup, and show where they "
            "differ.",
        ),
        "recover": Entry(
            "quarry_mq.cli.offline.recover:recover",
            "Recover a store as the broker does at its start, and close it as after a clean stop.",
        ),
        "restore": Entry(
            "quarry_mq.cli.offline.restore:restore",
            "Restore a store from a backup. The whole backup is checked before anything is written.",
        ),
        "decode": Entry(
            "quarry_mq.cli.offline.decode:decode", "Decode records of the commit log and run all checks on them."
        ),
        "units": Entry(
            "quarry_mq.cli.offline.queues:units",
            "List the entries of one queue: where each record lies, its size, tags code and store time.",
        ),
        "migrate": Entry(
            "quarry_mq.cli.offline.migrate:migrate",
            "Move the consume queues of a store to RocksDB or to RocketMQ's files, in one run.",
        ),
        "export-metadata": Entry(
            "quarry_mq.cli.offline.export_metadata:export_metadata",
            "Write topics, groups, offsets and the progress of delayed messages, so that RocketMQ can go on with a "
            "store.",
        ),
        "security": Entry("quarry_mq.cli.offline.security:commands", "Keys that encrypt the secrets of users."),
        "pipeline": Entry("quarry_mq.cli.pipeline:COMMANDS", "Work on whole stores with Spark."),
    },
    "This command": {
        "context": Entry(
            "quarry_mq.cli.context_commands:commands", "Contexts: addresses, TLS files and users of your brokers."
        ),
        "help": Entry("quarry_mq.cli.terminal.help:show_help", "Show the help of a command, as `-h` does."),
        "completion": Entry(
            "quarry_mq.cli.completion:completion",
            "Print a script for shell completion of commands, options, and names of contexts, topics and groups.",
        ),
        "schema": Entry(
            "quarry_mq.cli.schemas.command:schema",
            "Print the JSON Schema of the lines that a command prints with --json.",
        ),
    },
}
"""The commands by the sections of `quarry --help`."""

COMMANDS: Final[Mapping[str, Entry]] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
