"""`quarry acl` shows and changes what users of a broker may do."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from quarry_mq.cli.online.broker.users import CALL_TIMEOUT_S, security_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json, Prefix
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb

COLUMNS: Final = ("user", "resource", "decision", "actions", "sources")

commands: Final = typer.Typer(no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)]
ResourceText = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE", help="topic:orders, topic:orders-*, group:*, cluster:*, or * for all.", show_default=False
    ),
]
ActionNames = Annotated[
    list[str],
    typer.Argument(
        metavar="ACTION...", help="One or more of pub, sub, create, update, delete, get, list.", show_default=False
    ),
]
Sources = Annotated[
    list[str] | None,
    typer.Option("--address", metavar="CIDR", help="Only calls from this network or address. Repeatable."),
]


@commands.command()
def allow(
    user: UserName,
    resource: ResourceText,
    actions: ActionNames,
    *,
    sources: Sources = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Allow a user actions on a resource. The rule replaces the user's other allowing rule for the same resource."""
    _set_rule(user, _rule(resource, actions, sources, "allow"), admin, as_json=as_json)


@commands.command()
def deny(
    user: UserName,
    resource: ResourceText,
    actions: ActionNames,
    *,
    sources: Sources = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Deny a user actions on a resource. The rule replaces the user's other denying rule for the same resource."""
    _set_rule(user, _rule(resource, actions, sources, "deny"), admin, as_json=as_json)


@commands.command()
def remove(
    user: UserName,
    resource: ResourceText,
    *,
    decision: Annotated[
        str,
        typer.Option("--decision", metavar="allow|deny", help="Only the rule with this decision.", show_default=False),
    ] = "",
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Remove a user's rules for a resource, which must be spelled as in the rule."""
    confirm(f"remove the rules of {user} for {resource}", yes=yes)
    request = pb.RemoveRuleRequest(user=user, resource=resource, decision=decision)
    with security_port(admin) as broker:
        broker.RemoveRule(request, timeout=CALL_TIMEOUT_S)
    print_object({"user": user, "removed": resource}, as_json=as_json)


@commands.command()
def show(user: UserName, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the rules of one user."""
    with security_port(admin) as broker:
        policy = broker.GetPolicy(pb.GetPolicyRequest(user=user), timeout=CALL_TIMEOUT_S)
    print_rows((_fields(user, rule) for rule in policy.rules), COLUMNS, as_json=as_json, kind="rules")


@commands.command(name="list")
def list_rules(*, prefix: Prefix = "", admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the rules of all users, by the user's name."""
    with security_port(admin) as broker:
        answer = broker.ListPolicies(pb.ListPoliciesRequest(prefix=prefix))
        rows = (_fields(policy.user, rule) for page in answer for policy in page.policies for rule in policy.rules)
        print_rows(rows, COLUMNS, as_json=as_json, kind="rules")


@commands.command(name="test")
def ask(
    user: UserName,
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION", help="One of pub, sub, create, update, delete, get, list.", show_default=False
        ),
    ],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="One resource, such as topic:orders.", show_default=False)
    ],
    *,
    source: Annotated[
        str,
        typer.Option("--address", metavar="ADDRESS", help="Source address of the call.", show_default=False),
    ] = "",
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Tell whether a user may do something, and why. Nothing is done. Exit status 1: the user may not."""
    request = pb.TestAccessRequest(user=user, action=action, resource=resource, source=source)
    with security_port(admin) as broker:
        answer = broker.TestAccess(request, timeout=CALL_TIMEOUT_S)
    rule = _fields(user, answer.rule) if answer.HasField("rule") else None
    print_object({"decision": answer.decision, "reason": answer.reason, "rule": rule}, as_json=as_json)
    raise typer.Exit(Exit.FINE if answer.decision == "allow" else Exit.FINDING)


def _rule(resource: str, actions: list[str], sources: list[str] | None, decision: str) -> pb.Rule:
    return pb.Rule(resource=resource, actions=actions, decision=decision, sources=sources or [])


def _set_rule(user: str, rule: pb.Rule, admin: str, *, as_json: bool) -> None:
    with security_port(admin) as broker:
        done = broker.SetRule(pb.SetRuleRequest(user=user, rule=rule), timeout=CALL_TIMEOUT_S)
    print_object(_fields(user, done), as_json=as_json)


def _fields(user: str, rule: pb.Rule) -> dict[str, object]:
    return {
        "user": user,
        "resource": rule.resource,
        "decision": rule.decision,
        "actions": list(rule.actions),
        "sources": list(rule.sources),
    }
