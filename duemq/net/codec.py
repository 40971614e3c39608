"""Codec of remoting frames: bytes to requests and responses, and back. No I/O.

    | length (4) | type (1) | header length (3) | header | body |

The header is JSON (type 0) or ROCKETMQ binary (type 1). The codec is compatible with
RemotingCommand and with the Go and C++ clients: it writes values of extFields as JSON strings, and
accepts any scalar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET

from duemq.net import layout
from duemq_common.errors import FrameError
from duemq_common.request import Request, Response

FRAME_BYTES_MAX: Final = 16_777_216  # com.rocketmq.remoting.frameMaxLength
HEADER_BYTES_MAX: Final = 1 << 18  # a longer header would delay all other connections
VERSION: Final = 479  # MQVersion ordinal of 5.3.3
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2
LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
OTHER: Final = "OTHER"
_LANGUAGE_CODES: Final = {name: code for code, name in enumerate(LANGUAGES)}
_INT32_MAX: Final = 0x7FFF_FFFF
HTTP2_START: Final = b"PRI "  # first bytes of HTTP/2
GRPC_HINT: Final = "a gRPC client: it must connect to grpcServerPort"
REMARK_CHARS_MAX: Final = 1_000  # a remark may quote a huge invalid value
BINARY_FIELDS_MAX: Final = 4_096  # each is decoded in Python; clients send fewer than 50


class Frame(msgspec.Struct, frozen=True):
    """Positions of a frame's header and body in the buffer; the frame ends with the body."""

    serialize_type: int
    header_start: int
    body_start: int
    end: int


class ReceivedResponse(msgspec.Struct, frozen=True):
    """Received response, with the opaque number of its request and the version of the server."""

    opaque: int
    response: Response
    version: int


Command = Request | ReceivedResponse
"""Content of a frame. RemotingCommand"""


_Int32 = Annotated[int, msgspec.Meta(ge=-_INT32_MAX - 1, le=_INT32_MAX)]


class _Header(msgspec.Struct):
    """JSON header as Java writes it; other headers use the tolerant decoder."""

    code: _Int32 = 0
    language: str = "JAVA"
    version: _Int32 = 0
    opaque: _Int32 = 0
    flag: _Int32 = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None


class _WrittenHeader(msgspec.Struct):
    """Header to write, in the order in which Java writes JSON."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str = "JSON"
    version: int = VERSION


_decoder = msgspec.json.Decoder(_Header)
_tolerant_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def next_frame(
    buffer: memoryview, start: int, end: int, *, bytes_max: int = FRAME_BYTES_MAX
) -> Frame | None:
    """Return the frame that begins at `start`, or None while it is incomplete.

    Raises:
        FrameError: A length is invalid; the rest of the stream cannot be decoded.
    Source: NettyDecoder, RemotingCommand.decode
    """
    if end - start < layout.WORD_BYTES:
        return None
    if end - start < layout.PREFIX_BYTES:
        check_length(int.from_bytes(buffer[start : start + 4], "big", signed=True), bytes_max)
        return None
    length, word = layout.PREFIX.unpack_from(buffer, start)
    check_length(length, bytes_max)
    header_bytes = word & layout.HEADER_BYTES_MASK
    if header_bytes > length - layout.WORD_BYTES:
        raise FrameError(f"header of {header_bytes} bytes in a frame of {length}")
    frame_end = start + layout.WORD_BYTES + length
    if frame_end > end:
        return None
    header_start = start + layout.PREFIX_BYTES
    return Frame(word >> 24, header_start, header_start + header_bytes, frame_end)


def check_length(length: int, bytes_max: int = FRAME_BYTES_MAX) -> None:
    """Check a frame length.

    Raises:
        FrameError: The length is invalid; with a hint if the bytes look like another protocol.
    """
    if layout.WORD_BYTES <= length <= bytes_max:
        return
    first = (length >> 24) & 0xFF
    if first == 0x16:
        raise FrameError("the peer started a TLS handshake; switch TLS off in the client")
    hint = ""
    if 0x20 <= first < 0x7F:
        text = (length & 0xFFFF_FFFF).to_bytes(4, "big")
        hint = f"; it begins with {text!r}: "
        hint += GRPC_HINT if text == HTTP2_START else "not a RocketMQ client?"
    raise FrameError(f"frame length {length} is not between 4 and {bytes_max}{hint}")


def next_command(buffer: memoryview, start: int, end: int) -> tuple[Command, int] | None:
    """Return the content and the end of the frame that begins at `start`; None: incomplete.

    Raises:
        FrameError: The frame is invalid.
    """
    if end - start >= layout.PREFIX_BYTES:
        length, header_bytes = layout.PREFIX.unpack_from(buffer, start)  # the type of JSON is 0
        header_start = start + layout.PREFIX_BYTES
        body_start, frame_end = header_start + header_bytes, start + layout.WORD_BYTES + length
        if (
            header_bytes <= HEADER_BYTES_MAX
            and body_start <= frame_end <= end
            and length <= FRAME_BYTES_MAX
        ):
            header = _decode_json(buffer[header_start:body_start])
            body = bytes(buffer[body_start:frame_end]) if body_start < frame_end else b""
            return _command(header, body), frame_end
    frame = next_frame(buffer, start, end)
    return None if frame is None else (decode_frame(buffer, frame), frame.end)


def decode_frame(buffer: memoryview, frame: Frame) -> Command:
    """Decode the request or, if bit 0 of the flag is set, the response of a frame.

    Raises:
        FrameError: The header is malformed.
    """
    header_bytes = frame.body_start - frame.header_start
    if header_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"header of {header_bytes} bytes; the limit is {HEADER_BYTES_MAX}")
    data = buffer[frame.header_start : frame.body_start]
    if frame.serialize_type == layout.JSON_TYPE:
        header = _decode_json(data)
    elif frame.serialize_type == layout.BINARY_TYPE:
        header = _decode_binary(bytes(data))
    else:
        raise FrameError(f"serialize type {frame.serialize_type}; the valid types are 0 and 1")
    return _command(header, bytes(buffer[frame.body_start : frame.end]))


def _command(header: _Header, body: bytes) -> Command:
    if header.flag & FLAG_RESPONSE:
        response = Response(header.code, header.remark, header.extFields, body)
        return ReceivedResponse(header.opaque, response, header.version)
    return Request(
        code=header.code,
        fields=header.extFields or {},
        body=body,
        opaque=header.opaque,
        flag=header.flag,
        language=header.language if header.language in _LANGUAGE_CODES else OTHER,
        version=header.version,
        remark=header.remark,
        oneway=bool(header.flag & FLAG_ONEWAY),
    )


def encode_request(request: Request, *, serialize_type: int = layout.JSON_TYPE) -> bytes:
    """Return the frame of a request, with its opaque number and flag."""
    header = _WrittenHeader(
        request.code,
        request.fields or UNSET,
        request.flag | FLAG_ONEWAY if request.oneway else request.flag,
        request.language,
        request.opaque,
        UNSET if request.remark is None else request.remark,
        version=request.version or VERSION,
    )
    return _head(header, len(request.body), serialize_type) + request.body


def encode_response(
    response: Response, opaque: int, *, serialize_type: int = layout.JSON_TYPE
) -> list[bytes | memoryview]:
    """Return the buffers of a response frame: prefix and header, then the buffers of the body.

    Raises:
        FrameError: The frame would exceed FRAME_BYTES_MAX.
    """
    remark = response.remark
    header = _WrittenHeader(
        response.code,
        UNSET if response.fields is None else response.fields,
        FLAG_RESPONSE,
        LANGUAGES[0],
        opaque,
        UNSET if remark is None else remark[:REMARK_CHARS_MAX],
    )
    body = response.body
    parts = [body] if isinstance(body, bytes | memoryview) else body
    return _frame(header, parts, serialize_type)


def encode_success(opaque: int) -> bytes:
    """Return the JSON frame of a success response without fields or body."""
    data = b"%b%d%b" % (SUCCESS[0], opaque, SUCCESS[1])
    return layout.PREFIX.pack(layout.WORD_BYTES + len(data), len(data)) + data


def _frame(
    header: _WrittenHeader, body: Sequence[bytes | memoryview], serialize_type: int
) -> list[bytes | memoryview]:
    head = _head(header, sum(len(part) for part in body), serialize_type)
    return [head, *(part for part in body if len(part))]


def _head(header: _WrittenHeader, body_bytes: int, serialize_type: int) -> bytes:
    """Return the prefix and the header of a frame.

    Raises:
        FrameError: The frame would exceed FRAME_BYTES_MAX.
    """
    binary = serialize_type == layout.BINARY_TYPE
    data = _encode_binary(header) if binary else _encoder.encode(header)
    length = layout.WORD_BYTES + len(data) + body_bytes
    if length > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {length} bytes exceeds the limit of {FRAME_BYTES_MAX}")
    return layout.PREFIX.pack(length, serialize_type << 24 | len(data)) + data


SUCCESS: Final = tuple(
    _encoder.encode(_WrittenHeader(0, UNSET, FLAG_RESPONSE, LANGUAGES[0], 0, UNSET))
    .replace(b'"opaque":0', b'"opaque":|')
    .split(b"|")
)
"""Header of a success response without fields, before and after the opaque number."""


def _decode_json(data: memoryview) -> _Header:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        header = _tolerant_header(_tolerant_json(bytes(data)))
    for name in ("code", "opaque", "flag", "version"):
        if not -_INT32_MAX - 1 <= getattr(header, name) <= _INT32_MAX:
            raise FrameError(f"JSON header: {name} does not fit 32 bits")
    return header


def _tolerant_json(data: bytes) -> object:
    """Decode JSON as Java does: replace invalid UTF-8 and lone surrogates."""
    try:
        return _tolerant_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    try:
        text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
        return _tolerant_decoder.decode(text.encode("utf-8", "replace"))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise FrameError(f"JSON header of {len(data)} bytes: {error}") from error


def _tolerant_header(raw: object) -> _Header:
    if not isinstance(raw, dict):
        raise FrameError("JSON header: not an object")
    fields = raw.get("extFields")
    if not isinstance(fields, dict | None):
        raise FrameError("JSON header: extFields is not an object")
    remark, language = raw.get("remark"), raw.get("language")
    return _Header(
        code=_tolerant_int(raw, "code"),
        language=LANGUAGES[0] if language is None else str(language),
        version=_tolerant_int(raw, "version"),
        opaque=_tolerant_int(raw, "opaque"),
        flag=_tolerant_int(raw, "flag"),
        remark=None if remark is None else _scalar_text(remark),
        extFields=None if fields is None else _tolerant_fields(fields),
    )


def _tolerant_fields(fields: dict[str, object]) -> dict[str, str]:
    return {name: _scalar_text(value) for name, value in fields.items() if value is not None}


def _tolerant_int(raw: dict[str, object], name: str) -> int:
    value = raw.get(name)
    if value is None:
        return 0
    if isinstance(value, str | float):
        try:
            return int(value)
        except (ValueError, OverflowError) as error:
            raise FrameError(f"JSON header: {name} is not a number") from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise FrameError(f"JSON header: {name} is not a number")
    return value


def _scalar_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return _encoder.encode(value).decode()


def _encode_binary(header: _WrittenHeader) -> bytes:
    remark = (header.remark or "").encode("utf-8", "replace")
    if not -0x8000 <= header.code < 0x8000:
        raise FrameError(f"code {header.code} does not fit the binary header")
    head = layout.HEADER.pack(
        header.code,
        _LANGUAGE_CODES.get(header.language, _LANGUAGE_CODES[OTHER]),
        min(header.version, 0x7FFF),
        header.opaque,
        header.flag,
        len(remark),
    )
    entries = bytearray()
    for name, value in (header.extFields or {}).items():
        for text, length in ((name, layout.SHORT_LENGTH), (value, layout.LONG_LENGTH)):
            data = text.encode("utf-8", "replace")
            entries += length.pack(len(data)) + data
    return head + remark + layout.LONG_LENGTH.pack(len(entries)) + entries


def _decode_binary(data: bytes) -> _Header:
    if len(data) < layout.HEADER.size:
        raise FrameError(f"binary header of {len(data)} bytes; the minimum is 17")
    code, language, version, opaque, flag, remark_len = layout.HEADER.unpack_from(data)
    remark, pos = _text(data, layout.HEADER.size, remark_len)
    fields_len, pos = _length(data, pos, 4)
    if fields_len > len(data) - pos:
        raise FrameError(f"binary header: extFields of {fields_len} bytes exceed the header")
    return _Header(
        code=code,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else OTHER,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark if remark_len else None,
        extFields=_binary_fields(data[pos : pos + fields_len]) if fields_len else None,
    )


def _binary_fields(data: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    pos = 0
    while pos < len(data):
        if len(fields) >= BINARY_FIELDS_MAX:
            raise FrameError(f"binary header: more than {BINARY_FIELDS_MAX} extFields")
        name_len, pos = _length(data, pos, 2)
        name, pos = _text(data, pos, name_len)
        value_len, pos = _length(data, pos, 4)
        fields[name], pos = _text(data, pos, value_len)
    return fields


def _length(data: bytes, pos: int, size: int) -> tuple[int, int]:
    if pos + size > len(data):
        raise FrameError(f"binary header of {len(data)} bytes ends inside a length")
    value = int.from_bytes(data[pos : pos + size], "big", signed=True)
    if value < 0:
        raise FrameError(f"binary header: negative length {value}")
    return value, pos + size


def _text(data: bytes, pos: int, length: int) -> tuple[str, int]:
    if length < 0 or pos + length > len(data):
        raise FrameError(f"binary header: a text of {length} bytes exceeds the header")
    return data[pos : pos + length].decode("utf-8", "replace"), pos + length
