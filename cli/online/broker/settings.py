"""`quarry settings` shows and changes the settings that can be changed while a broker runs."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import settings_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.settings_pb2_grpc import SettingsServiceStub

CALL_TIMEOUT_S: Final = 30.0
COLUMNS: Final = ("key", "value", "source")

commands: Final = typer.Typer(no_args_is_help=True)

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Key of the setting, such as expiry.retention_hours.", show_default=False)
]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", help="The new value, as in the settings file.", show_default=False)
]


@commands.command(name="list")
def list_settings(admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the settings that can be changed, with where their values come from."""
    with service_port(admin, SettingsServiceStub) as broker:
        found = broker.ListSettings(pb.ListSettingsRequest(), timeout=CALL_TIMEOUT_S).settings
        print_rows(map(_fields, found), COLUMNS, as_json=as_json, kind="settings")


@commands.command()
def get(key: Key, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show one setting."""
    with service_port(admin, SettingsServiceStub) as broker:
        print_object(_fields(broker.GetSetting(pb.GetSettingRequest(key=key), timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command(name="set")
def set_setting(key: Key, value: Value, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Change one setting at once and permanently; `reset` restores what the broker was started with."""
    with service_port(admin, SettingsServiceStub) as broker:
        request = pb.SetSettingRequest(key=key, value=value)
        print_object(_fields(broker.SetSetting(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


@commands.command()
def reset(key: Key, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Reset one setting to what flags, environment, file or default say."""
    with service_port(admin, SettingsServiceStub) as broker:
        request = pb.ResetSettingRequest(key=key)
        print_object(_fields(broker.ResetSetting(request, timeout=CALL_TIMEOUT_S)), as_json=as_json)


def _fields(setting: pb.Setting) -> dict[str, object]:
    return {
        "key": setting.key,
        "value": setting.value,
        "source": setting.source,
        "configured": setting.configured,
        "meaning": setting.meaning,
    }
