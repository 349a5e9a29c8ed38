"""Print the messages, enums and services of generated protobuf modules as JSON.

Run in a process of its own: generated code of two origins for one package cannot be loaded together.
usage: python descriptors.py MODULE...
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

Facts = dict[str, object]


def describe_file(file: FileDescriptor) -> Facts:
    """Every fact by its full name, one per field, enum value or method, so that differences have names."""
    facts: Facts = {}
    for message in file.message_types_by_name.values():
        describe_message(message, facts)
    for enum in file.enum_types_by_name.values():
        describe_enum(enum, facts)
    for service in file.services_by_name.values():
        describe_service(service, facts)
    return facts


def describe_message(message: Descriptor, facts: Facts) -> None:
    facts[message.full_name] = "message"
    for field in message.fields:
        facts[f"{message.full_name}.{field.name}"] = describe_field(field)
    for nested in message.nested_types:
        describe_message(nested, facts)
    for enum in message.enum_types:
        describe_enum(enum, facts)


def describe_field(field: FieldDescriptor) -> Facts:
    referenced = field.message_type or field.enum_type
    return {
        "number": field.number,
        "type": field.type,
        "of": referenced.full_name if referenced else None,
        "repeated": field.is_repeated,
        "presence": field.has_presence,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
    }


def describe_enum(enum: EnumDescriptor, facts: Facts) -> None:
    facts[enum.full_name] = "enum"
    for value in enum.values:
        facts[f"{enum.full_name}.{value.name}"] = value.number


def describe_service(service: ServiceDescriptor, facts: Facts) -> None:
    for method in service.methods:
        facts[method.full_name] = [
            method.input_type.full_name,
            method.client_streaming,
            method.output_type.full_name,
            method.server_streaming,
        ]


def main() -> None:
    facts: Facts = {}
    for name in sys.argv[1:]:
        facts.update(describe_file(import_module(name).DESCRIPTOR))
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
