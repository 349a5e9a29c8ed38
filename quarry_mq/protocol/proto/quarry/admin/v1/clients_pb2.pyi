from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLIENT_TYPE_UNSPECIFIED: _ClassVar[ClientType]
    CLIENT_TYPE_PRODUCER: _ClassVar[ClientType]
    CLIENT_TYPE_CONSUMER: _ClassVar[ClientType]
CLIENT_TYPE_UNSPECIFIED: ClientType
CLIENT_TYPE_PRODUCER: ClientType
CLIENT_TYPE_CONSUMER: ClientType

class ListClientsRequest(_message.Message):
    __slots__ = ("type", "group", "topic")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    type: ClientType
    group: str
    topic: str
    def __init__(self, type: _Optional[_Union[ClientType, str]] = ..., group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("client_id", "kind", "group", "topics", "language", "version", "hostname", "address", "settings_at_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    kind: str
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    language: str
    version: str
    hostname: str
    address: str
    settings_at_ms: int
    def __init__(self, client_id: _Optional[str] = ..., kind: _Optional[str] = ..., group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., hostname: _Optional[str] = ..., address: _Optional[str] = ..., settings_at_ms: _Optional[int] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ...) -> None: ...
