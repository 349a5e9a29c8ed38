"""`quarry user` manages the users of a broker, their secrets and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Final

import grpc
import typer

from quarry_mq.cli.offline.security import SecretFile, bootstrap, secret_text
from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, DryRun, Json, Name, Prefix
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub

CALL_TIMEOUT_S: Final = 10.0
RESEAL_TIMEOUT_S: Final = 600.0
COLUMNS: Final = ("name", "kind", "enabled", "secrets", "certificates")

commands: Final = typer.Typer(no_args_is_help=True)


class KindName(Enum):
    NORMAL = "normal"
    SUPER = "super"


CertificateList = Annotated[
    list[str] | None,
    typer.Option(
        "--certificate",
        metavar="SUBJECT",
        help="Subject of a client certificate of the user: CN=orders,O=Shop. Repeatable.",
    ),
]


@contextmanager
def security_port(address: str) -> Iterator[SecurityServiceStub]:
    """Give the security service at `host:port`. Its refusals are shown in its own words."""
    with service_port(address, SecurityServiceStub, plain=[grpc.StatusCode.FAILED_PRECONDITION]) as broker:
        yield broker


@commands.command()
def create(
    name: Name,
    *,
    is_super: Annotated[bool, typer.Option("--super", help="Super user: may do everything, without any rule.")] = False,
    certificate: CertificateList = None,
    secret_file: SecretFile = None,
    no_secret: Annotated[
        bool, typer.Option("--no-secret", help="Create no secret: the user has certificates.")
    ] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a user. A secret that the broker generates is shown once."""
    if no_secret and secret_file is not None:
        raise typer.BadParameter("--secret-file and --no-secret are not allowed together")
    request = pb.CreateUserRequest(
        name=name,
        kind="super" if is_super else "normal",
        certificates=certificate or [],
        secret=secret_text(secret_file),
        without_secret=no_secret,
    )
    with security_port(admin) as broker:
        answer = broker.CreateUser(request, timeout=CALL_TIMEOUT_S)
    print_object({**user_fields(answer.user), **_generated(answer.generated_secret)}, as_json=as_json)


@commands.command()
def update(
    name: Name,
    *,
    kind: Annotated[
        KindName | None,
        typer.Option(
            "--kind", metavar="normal|super", help="normal: needs rules; super: may do everything.", show_default=False
        ),
    ] = None,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether the user may do anything at all.", show_default=False),
    ] = None,
    certificate: CertificateList = None,
    no_certificates: Annotated[
        bool, typer.Option("--no-certificates", help="Remove all certificates of the user.")
    ] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change the given options of a user, and leave the others as they are. New certificates replace the old ones."""
    if no_certificates and certificate:
        raise typer.BadParameter("--certificate and --no-certificates are not allowed together")
    request = pb.UpdateUserRequest(name=name, kind=kind.value if kind else None, enabled=enabled)
    if certificate or no_certificates:
        request.certificates.CopyFrom(pb.Certificates(subjects=certificate or []))
    with security_port(admin) as broker:
        user = broker.UpdateUser(request, timeout=CALL_TIMEOUT_S)
    print_object(user_fields(user), as_json=as_json)


@commands.command()
def delete(
    name: Name, *, dry_run: DryRun = False, yes: Yes = False, admin: Admin = ADMIN_DEFAULT, as_json: Json = False
) -> None:
    """Delete a user with all of its rules."""
    if dry_run:
        print_object(_deletion(admin, name), as_json=as_json)
        return
    confirm(f"delete the user {name}", yes=yes, told=lambda: _deletion(admin, name))
    with security_port(admin) as broker:
        broker.DeleteUser(pb.DeleteUserRequest(name=name), timeout=CALL_TIMEOUT_S)
    print_object({"deleted": name}, as_json=as_json)


@commands.command(name="list")
def list_users(*, prefix: Prefix = "", admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List users by name."""
    with security_port(admin) as broker:
        answer = broker.ListUsers(pb.ListUsersRequest(prefix=prefix))
        users = (user for page in answer for user in page.users)
        rows = ({**user_fields(user), **({} if as_json else {"secrets": len(user.secrets)})} for user in users)
        print_rows(rows, COLUMNS, as_json=as_json, kind="users")


@commands.command()
def show(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a user. Secrets themselves are not shown, only their numbers and dates."""
    with security_port(admin) as broker:
        user = broker.GetUser(pb.GetUserRequest(name=name), timeout=CALL_TIMEOUT_S)
    print_object(user_fields(user), as_json=as_json)


@commands.command()
def add_secret(
    name: Name, *, secret_file: SecretFile = None, admin: Admin = ADMIN_DEFAULT, as_json: Json = False
) -> None:
    """Give a user a second secret beside the one in use. A secret that the broker generates is shown once."""
    request = pb.AddSecretRequest(name=name, secret=secret_text(secret_file))
    with security_port(admin) as broker:
        answer = broker.AddSecret(request, timeout=CALL_TIMEOUT_S)
    fields = {"name": name, "number": answer.secret.number, **_generated(answer.generated_secret)}
    print_object(fields, as_json=as_json)


@commands.command()
def remove_secret(
    name: Name,
    number: Annotated[
        int,
        typer.Argument(metavar="NUMBER", help="Number of the secret, as in `quarry user show`.", show_default=False),
    ],
    *,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Revoke a secret at once."""
    confirm(f"revoke secret {number} of {name}", yes=yes)
    with security_port(admin) as broker:
        broker.RemoveSecret(pb.RemoveSecretRequest(name=name, number=number), timeout=CALL_TIMEOUT_S)
    print_object({"name": name, "removed": number}, as_json=as_json)


@commands.command()
def reseal(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Seal all secrets again with the broker's first key, so that the other keys are no longer needed."""
    with security_port(admin) as broker:
        answer = broker.ResealSecrets(pb.ResealSecretsRequest(), timeout=RESEAL_TIMEOUT_S)
    print_object({"resealed": answer.count}, as_json=as_json)


commands.command()(bootstrap)


def user_fields(user: pb.User) -> dict[str, object]:
    return {
        "name": user.name,
        "kind": user.kind,
        "enabled": user.enabled,
        "certificates": list(user.certificates),
        "secrets": [{"number": each.number, "createdAt": time_text(each.created_at_ms)} for each in user.secrets],
        "createdAt": time_text(user.created_at_ms),
    }


def _deletion(admin: str, name: str) -> dict[str, object]:
    """Return what `delete` would remove."""
    with security_port(admin) as broker:
        user = broker.GetUser(pb.GetUserRequest(name=name), timeout=CALL_TIMEOUT_S)
        policy = broker.GetPolicy(pb.GetPolicyRequest(user=name), timeout=CALL_TIMEOUT_S)
    return {
        "dryRun": True,
        "user": name,
        "kind": user.kind,
        "enabled": user.enabled,
        "secrets": len(user.secrets),
        "certificates": list(user.certificates),
        "rules": len(policy.rules),
    }


def _generated(secret: str) -> dict[str, object]:
    return {"secret": secret} if secret else {}
