"""Serve `quarry.admin.v1.SettingsService` on the admin port: settings that are changed while the broker runs."""

from __future__ import annotations

from typing import Final

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import settings_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.settings_pb2_grpc import (
    SettingsServiceServicer,
    add_SettingsServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answers, given
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.server.settings.live_settings import LiveSettings, ShownSetting

NAME: Final = pb.DESCRIPTOR.services_by_name["SettingsService"].full_name


class SettingsService(SettingsServiceServicer):
    """Translates requests and answers."""

    def __init__(self, settings: LiveSettings, error_reporter: ErrorReporter) -> None:
        self._settings = settings
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_SettingsServiceServicer_to_server(self, server)
        return NAME

    @answers
    def ListSettings(self, _request: pb.ListSettingsRequest) -> pb.ListSettingsResponse:
        return pb.ListSettingsResponse(settings=map(_message, self._settings.shown()))

    @answers
    def GetSetting(self, request: pb.GetSettingRequest) -> pb.Setting:
        return _message(self._settings.show(given("key", request.key)))

    @answers
    def SetSetting(self, request: pb.SetSettingRequest) -> pb.Setting:
        return _message(self._settings.set(given("key", request.key), request.value))

    @answers
    def ResetSetting(self, request: pb.ResetSettingRequest) -> pb.Setting:
        return _message(self._settings.reset(given("key", request.key)))


def _message(shown: ShownSetting) -> pb.Setting:
    return pb.Setting(**shown._asdict())
