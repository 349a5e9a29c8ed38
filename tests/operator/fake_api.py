"""The part of the Kubernetes API that the operator uses, in memory. `test_operator` runs on it and on the real one."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import jsonschema

from tests.operator.definitions import DEFINITIONS, schema_of

Object = dict[str, Any]


class FakeApi(httpx.AsyncBaseTransport):
    """Answers requests as kube-apiserver does: versions, generations, finalizers, status, schemas, watches."""

    def __init__(self) -> None:
        self.is_down = False
        self.requests: list[tuple[str, str]] = []
        """Method and path of each request that changed something."""
        self._objects: dict[tuple[str, str], Object] = {}  # by plural and name
        self._version = 0
        self._history: list[tuple[int, str, str, Object]] = []  # version, plural, type of change, object
        self._changed = asyncio.Event()

    def __deepcopy__(self, _known: object) -> FakeApi:
        return self  # lightkube copies what it is given

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_down:
            raise httpx.ConnectError("connection refused", request=request)
        plural, name, subresource = _parsed(request.url.path)
        body: Object = json.loads(await request.aread() or b"{}")
        if request.method != "GET":
            self.requests.append((request.method, request.url.path))
        match request.method, name:
            case "GET", "" if request.url.params.get("watch") == "true":
                version = int(request.url.params.get("resourceVersion") or 0)
                return httpx.Response(200, stream=_Lines(self._watch(plural, version)))
            case "GET", "":
                items = [each for (its, _), each in self._objects.items() if its == plural]
                return _json(200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})
            case "POST", "":
                return self._create(plural, body)
        before = self._objects.get((plural, name))
        if before is None:
            return _failure(404, f'{plural} "{name}" not found')
        match request.method:
            case "GET":
                return _json(200, before)
            case "PATCH":
                return self._patch(plural, before, body, subresource)
            case _:
                return self._delete(plural, before)

    def _create(self, plural: str, body: Object) -> httpx.Response:
        metadata = body.setdefault("metadata", {})
        name = metadata.setdefault("name", metadata.get("generateName", "") + uuid.uuid4().hex[:8])
        if (plural, name) in self._objects:
            return _failure(409, f'{plural} "{name}" already exists')
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now, "generation": 1}
        if plural == "secrets":
            given = {
                each: base64.b64encode(text.encode()).decode() for each, text in body.pop("stringData", {}).items()
            }
            body["data"] = body.get("data", {}) | given
        body.pop("status", None)
        return self._stored(plural, None, body, "ADDED")

    def _patch(self, plural: str, before: Object, change: Object, subresource: str) -> httpx.Response:
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in (None, before["metadata"]["resourceVersion"]):
            return _failure(409, "the object has been modified")
        after = _merged(copy.deepcopy(before), change)
        if subresource == "status":
            after = before | {"status": after.get("status", {})}
        elif plural in DEFINITIONS:
            after.pop("status", None)
            after |= {"status": before["status"]} if "status" in before else {}
        if any(after.get(each) != before.get(each) for each in ("spec", "data")):
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return self._stored(plural, before, after, "MODIFIED")

    def _delete(self, plural: str, before: Object) -> httpx.Response:
        if before["metadata"].get("finalizers"):
            after = copy.deepcopy(before)
            after["metadata"].setdefault("deletionTimestamp", before["metadata"]["creationTimestamp"])
            return self._stored(plural, before, after, "MODIFIED")
        return self._removed(plural, before)

    def _removed(self, plural: str, before: Object) -> httpx.Response:
        del self._objects[plural, before["metadata"]["name"]]
        self._tell(plural, "DELETED", before)
        return _json(200, before)

    def _stored(self, plural: str, before: Object | None, after: Object, change: str) -> httpx.Response:
        if plural in DEFINITIONS:
            schema = schema_of(plural)
            _set_defaults(schema, after)
            errors = [each.message for each in jsonschema.Draft7Validator(schema).iter_errors(after)]
            if errors:
                return _failure(422, f"{after['metadata']['name']} is invalid: {errors}")
        if after == before:
            return _json(200, after)
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            return self._removed(plural, after)
        after = copy.deepcopy(after)
        self._tell(plural, change, after)
        self._objects[plural, after["metadata"]["name"]] = after
        return _json(201 if change == "ADDED" else 200, after)

    def _tell(self, plural: str, change: str, found: Object) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, plural, change, copy.deepcopy(found)))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, plural: str, version: int) -> AsyncIterator[bytes]:
        while True:
            changed = self._changed
            new = [each for each in self._history if each[0] > version]
            for number, its, change, found in new:
                version = number
                if its == plural:
                    yield json.dumps({"type": change, "object": found}).encode() + b"\n"
            await changed.wait()


class _Lines(httpx.AsyncByteStream):
    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            yield line


def _parsed(path: str) -> tuple[str, str, str]:
    """Plural, name and subresource of a path below `namespaces/NAME`."""
    words = path.strip("/").split("/")
    at = words.index("namespaces") + 2
    plural, name, subresource = (*words[at:], "", "")[:3]
    return plural, name, subresource


def _merged(before: Object, change: Object) -> Object:
    """RFC 7386."""
    for name, value in change.items():
        if value is None:
            before.pop(name, None)
        elif isinstance(value, dict):
            inner = before.get(name)
            before[name] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            before[name] = value
    return before


def _set_defaults(schema: Object, value: Object) -> None:
    for name, inner in schema.get("properties", {}).items():
        if "default" in inner:
            value.setdefault(name, copy.deepcopy(inner["default"]))
        if isinstance(value.get(name), dict):
            _set_defaults(inner, value[name])


def _json(code: int, body: Object) -> httpx.Response:
    return httpx.Response(code, json=body)


def _failure(code: int, message: str) -> httpx.Response:
    return _json(code, {"kind": "Status", "status": "Failure", "message": message, "code": code})
