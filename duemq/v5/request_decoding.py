"""Decoding of the requests of calls."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from duemq.net.http2.grpc_status import GrpcError, GrpcStatus

RequestT = TypeVar("RequestT", bound=Message)


def decode_request(data: bytes | None, request_type: type[RequestT]) -> RequestT:
    """Decode the request of a call.

    Raises:
        GrpcError: The request is missing or malformed.
    """
    if data is None:
        raise GrpcError(GrpcStatus.INTERNAL, "Half-closed without a request")
    try:
        request: RequestT = request_type.FromString(data)
        return request
    except DecodeError as error:
        text = f"Invalid protobuf byte sequence: {error}"  # UNKNOWN: as Apache's proxy
        raise GrpcError(GrpcStatus.UNKNOWN, text) from error
