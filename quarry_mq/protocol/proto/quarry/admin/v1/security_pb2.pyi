from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class User(_message.Message):
    __slots__ = ("name", "kind", "enabled", "certificates", "secrets", "created_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    enabled: bool
    certificates: _containers.RepeatedScalarFieldContainer[str]
    secrets: _containers.RepeatedCompositeFieldContainer[Secret]
    created_at_ms: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., certificates: _Optional[_Iterable[str]] = ..., secrets: _Optional[_Iterable[_Union[Secret, _Mapping]]] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class Secret(_message.Message):
    __slots__ = ("number", "created_at_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    created_at_ms: int
    def __init__(self, number: _Optional[int] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "kind", "certificates", "secret", "without_secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    certificates: _containers.RepeatedScalarFieldContainer[str]
    secret: str
    without_secret: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., certificates: _Optional[_Iterable[str]] = ..., secret: _Optional[str] = ..., without_secret: _Optional[bool] = ...) -> None: ...

class CreateUserResponse(_message.Message):
    __slots__ = ("user", "generated_secret")
    USER_FIELD_NUMBER: _ClassVar[int]
    GENERATED_SECRET_FIELD_NUMBER: _ClassVar[int]
    user: User
    generated_secret: str
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ..., generated_secret: _Optional[str] = ...) -> None: ...

class UpdateUserRequest(_message.Message):
    __slots__ = ("name", "kind", "enabled", "certificates")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    enabled: bool
    certificates: Certificates
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., certificates: _Optional[_Union[Certificates, _Mapping]] = ...) -> None: ...

class Certificates(_message.Message):
    __slots__ = ("subjects",)
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    subjects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subjects: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ...) -> None: ...

class AddSecretRequest(_message.Message):
    __slots__ = ("name", "secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    secret: str
    def __init__(self, name: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class AddSecretResponse(_message.Message):
    __slots__ = ("secret", "generated_secret")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    GENERATED_SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: Secret
    generated_secret: str
    def __init__(self, secret: _Optional[_Union[Secret, _Mapping]] = ..., generated_secret: _Optional[str] = ...) -> None: ...

class RemoveSecretRequest(_message.Message):
    __slots__ = ("name", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RemoveSecretResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResealSecretsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResealSecretsResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("resource", "actions", "decision", "sources")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    resource: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    decision: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., decision: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("user", "rules")
    USER_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    user: str
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    def __init__(self, user: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ...) -> None: ...

class SetRuleRequest(_message.Message):
    __slots__ = ("user", "rule")
    USER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    user: str
    rule: Rule
    def __init__(self, user: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ...) -> None: ...

class RemoveRuleRequest(_message.Message):
    __slots__ = ("user", "resource", "decision")
    USER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    user: str
    resource: str
    decision: str
    def __init__(self, user: _Optional[str] = ..., resource: _Optional[str] = ..., decision: _Optional[str] = ...) -> None: ...

class RemoveRuleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class TestAccessRequest(_message.Message):
    __slots__ = ("user", "action", "resource", "source")
    USER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    action: str
    resource: str
    source: str
    def __init__(self, user: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class TestAccessResponse(_message.Message):
    __slots__ = ("decision", "reason", "rule")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    decision: str
    reason: str
    rule: Rule
    def __init__(self, decision: _Optional[str] = ..., reason: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ...) -> None: ...
