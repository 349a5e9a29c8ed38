"""The calls of the admin port that are for operators, in the form that a generic client needs."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.quarry.admin import v1


def methods() -> dict[str, MethodDescriptor]:
    """Return the methods of all services by `package.Service/Method`."""
    names = (f"{v1.__name__}.{module.name}" for module in pkgutil.iter_modules(v1.__path__))
    modules = [import_module(name) for name in names if name.endswith("_pb2")]
    return {
        f"{service.full_name}/{method.name}": method
        for module in (official, *modules)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def methods_by_short_name() -> dict[str, MethodDescriptor]:
    """Return the methods by `Service/Method`: no two services share a name."""
    return {short_name(path): method for path, method in methods().items()}


def path_of(method: MethodDescriptor) -> str:
    """Return the method's path in gRPC: `/package.Service/Method`."""
    assert method.containing_service is not None
    return f"/{method.containing_service.full_name}/{method.name}"


def stub_of(channel: grpc.Channel | grpc.aio.Channel, method: MethodDescriptor) -> Any:
    """Return the function that makes the call: it takes a request and returns an answer, or an iterator of them."""
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(
        path_of(method),
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )


def short_name(method: str) -> str:
    """Shorten a path: `/quarry.admin.v1.AdminService/GetTopic` → `AdminService/GetTopic`."""
    service, _, name = method.removeprefix("/").partition("/")
    return f"{service.rpartition('.')[2]}/{name}"


def service_of(method: str) -> str:
    """Return the service of a path: `/quarry.admin.v1.AdminService/GetTopic` → `quarry.admin.v1.AdminService`."""
    return method.removeprefix("/").partition("/")[0]
