"""The first step of a call of the admin port: it gets a slot, and its bytes become a request.

Requests are read here and not by gRPC, so that a call that sends none ends, and so that bytes that are no valid request
end their call with a fitting status code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isasyncgen, isawaitable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from quarry_mq.protocol.admin_methods import service_of
from quarry_mq.server.admin_port.calls.access import OPEN_SERVICES, STRANGERS_SERVICES
from quarry_mq.server.admin_port.calls.edge import caller_peer, kind_of, status_code
from quarry_mq.server.admin_port.calls.guard import REQUEST_WAIT_S, STRANGER_S, CallSlots, Slot, call_has
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.status import Refused

_Context = grpc.aio.ServicerContext[Any, Any]
_Read = Callable[[_Context], Awaitable[Any]]
_Serve = Callable[[_Context, Slot], Awaitable[Any]]

NO_REQUEST: Final = f"no request came within {REQUEST_WAIT_S:.0f} s"
FIELDS_MAX: Final = 16_384
"""Fields and entries of a request above 16 KiB. Counting them takes some milliseconds; no valid request has more."""
TOO_LONG: Final = f"an unauthenticated call ends after {STRANGER_S:.0f} s: repeat the call"


class RequestReader(grpc.aio.ServerInterceptor):
    """The first interceptor, before all others, which get messages. gRPC alone would wait for a request for ever."""

    def __init__(self, slots: CallSlots, *, asks_who_calls: bool) -> None:
        """`asks_who_calls`: a later interceptor authenticates the caller and admits the call's slot."""
        self._slots = slots
        self._asks = asks_who_calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        service = service_of(handler_call_details.method)
        is_for_strangers = service in STRANGERS_SERVICES and (service in OPEN_SERVICES or not self._asks)
        is_known_by_address = not (self._asks or is_for_strangers or service in OPEN_SERVICES)
        behaviour = getattr(handler, kind_of(handler))
        read = _reader(handler)

        async def serve(context: _Context, slot: Slot) -> Any:
            late = asyncio.get_running_loop().call_later(REQUEST_WAIT_S, slot.end, NO_REQUEST)
            try:
                request = await read(context)
            finally:
                late.cancel()
            if is_known_by_address:
                try:
                    slot.admit(f"address {slot.address}")
                except OverLimit as error:
                    await context.abort(status_code(error), str(error))
            answers = behaviour(request, context)
            if isasyncgen(answers):
                async for answer in answers:
                    await context.write(answer)
                return None
            return await answers if isawaitable(answers) else answers

        async def call(_requests: object, context: _Context) -> Any:
            return await self._in_slot(context, serve, is_for_strangers=is_for_strangers)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(call, response_serializer=handler.response_serializer)

    async def _in_slot(self, context: _Context, serve: _Serve, *, is_for_strangers: bool) -> Any:
        """Serve a call. It keeps its slot until its whole answer is sent."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        reasons: list[str] = []

        def end(reason: str) -> None:
            reasons.append(reason)
            task.cancel()

        slot = self._slots.open(caller_peer(context), end)
        too_long = loop.call_later(STRANGER_S, end, TOO_LONG) if is_for_strangers else None

        def over(servicer_context: object) -> None:  # noqa: ARG001 - gRPC hands it over
            slot.close()
            if too_long is not None:
                too_long.cancel()

        context.add_done_callback(over)  # type: ignore[arg-type]  # the types want a class of their own
        call_has(slot)
        try:
            return await serve(context, slot)
        except asyncio.CancelledError:
            if not reasons or context.done():
                raise
            task.uncancel()
            try:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reasons[0])
            except grpc.aio.InternalError:
                # an answer is still being written, so no status can follow: gRPC closes the call when its task ends
                raise asyncio.CancelledError from None


def _reader(handler: Any) -> _Read:
    """Return a reader of the call's one request, or of a stream of them once the first has arrived."""
    deserialize = handler.request_deserializer

    async def parsed(request: bytes, context: _Context) -> Any:
        if deserialize is None:
            return request
        try:
            return request_of(deserialize.__self__, request, fields_most=FIELDS_MAX)
        except Refused as error:
            await context.abort(status_code(error), str(error))
        except DecodeError:
            message_type = deserialize.__self__.DESCRIPTOR.full_name
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {message_type}")

    async def read_one(context: _Context) -> Any:
        request = await context.read()
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return await parsed(request, context)

    async def read_many(context: _Context) -> AsyncIterator[Any]:
        first = await read_one(context)

        async def requests() -> AsyncIterator[Any]:
            yield first
            while (request := await context.read()) is not grpc.aio.EOF:
                yield await parsed(request, context)

        return requests()

    return read_many if handler.request_streaming else read_one
