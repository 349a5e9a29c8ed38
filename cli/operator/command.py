"""`quarry operator` runs the operator for the brokers of one namespace of Kubernetes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.administration import endpoint_of
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin
from quarry_mq.cli.terminal.exit import Exit, end


def operator(
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Namespace of the custom resources. Default: that of the pod, or of the current context of kubectl.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Address of /metrics, /healthz and /readyz.", show_default=False
        ),
    ] = None,
    shards: Annotated[
        Path | None,
        typer.Option(
            "--shard-set",
            metavar="FILE",
            help="JSON file with the ShardSet of the brokers, which is written to Kubernetes first.",
            show_default=False,
        ),
    ] = None,
    migration: Annotated[
        Path | None,
        typer.Option(
            "--migration",
            metavar="FILE",
            help="JSON file with the Migration of the broker, which is written to Kubernetes first.",
            show_default=False,
        ),
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
) -> None:
    """Bring topics, groups, users and access rules of brokers to what custom resources of Kubernetes declare.

    The command runs until Ctrl-C or SIGTERM. It connects to Kubernetes as its pod, or as KUBECONFIG or ~/.kube/config
    says. In a cluster of brokers, --admin is the address of any member, or of a Service for all of them.
    """
    if find_spec("lightkube") is None:
        end(Exit.COULD_NOT_RUN, "the extra `operator` is not installed: pip install 'quarry-mq[operator]'")
    # imported here: it needs the extra, and no other command does
    from quarry_mq.cli.operator.process import OperatorFailed, run
    from quarry_mq.cli.operator.resources import MIGRATION, SHARD_SET

    files = {kind: file for kind, file in ((SHARD_SET, shards), (MIGRATION, migration)) if file is not None}
    try:
        run(endpoint_of(admin, chosen()), namespace, http, files)
    except OperatorFailed as error:
        end(Exit.COULD_NOT_RUN, str(error), names=None)
