"""Bytes become requests here, so that those which are none end their call with a code that says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isasyncgen, isawaitable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from server.rpc.admin_port.handlers import KINDS, kind_of

_Context = grpc.aio.ServicerContext[Any, Any]
_Read = Callable[[Any, _Context], Awaitable[Any]]


class RequestReader(grpc.aio.ServerInterceptor):
    """To stand before all others, which get messages. gRPC alone would end a call that cannot be read with UNKNOWN."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        kind = kind_of(handler)
        read = (_many_requests if handler.request_streaming else _one_request)(handler.request_deserializer)
        answering = (_many_answers if handler.response_streaming else _one_answer)(getattr(handler, kind), read)
        return KINDS[kind](answering, response_serializer=handler.response_serializer)


def _one_request(deserialize: Callable[[bytes], Any]) -> _Read:
    message_type = deserialize.__self__.DESCRIPTOR.full_name  # type: ignore[attr-defined]

    async def read(request: bytes, context: _Context) -> Any:
        try:
            return deserialize(request)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {message_type}")

    return read


def _many_requests(deserialize: Callable[[bytes], Any]) -> _Read:
    read_one = _one_request(deserialize)

    async def read(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[Any]:
        async def messages() -> AsyncIterator[Any]:
            async for request in requests:
                yield await read_one(request, context)

        return messages()

    return read


def _one_answer(behaviour: Callable[..., Any], read: _Read) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: _Context) -> Any:
        answer = behaviour(await read(request, context), context)
        return await answer if isawaitable(answer) else answer

    return call


def _many_answers(behaviour: Callable[..., Any], read: _Read) -> Callable[..., Awaitable[None]]:
    async def call(request: Any, context: _Context) -> None:
        answers = behaviour(await read(request, context), context)
        if isasyncgen(answers):
            async for answer in answers:
                await context.write(answer)
        else:
            await answers

    return call
