"""The HTTP/2 layer of the gRPC port against h2spec, a conformance test of HTTP/2 servers."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as Xml
from pathlib import Path

from duemq.net.http2.frame_layout import Http2Error, header_block
from duemq.net.http2.http2_server import Http2Server
from tests.interop.programs import h2spec
from tests.support.free_ports import LOOPBACK

STREAMS_MAX = 100
TIMEOUT_S = 300
FRAME_S, LONG_S = 1, 20  # time for a frame; many of the cases not counted wait for all of it
FIELDS = header_block([(b":status", b"200"), (b"content-type", b"text/plain")])
BODY = b"h2spec"
NOT_VALIDATED = (
    "http2/8.1.2"  # rules for header fields: the server forwards none, and gRPC frames have lengths
)
DIFFERENT = {
    # The server resets the stream and keeps the connection: a call may end before its client has
    # sent all frames, and frames in flight must not affect other calls.
    ("http2/5.1", "closed: Sends a HEADERS frame"),
    ("http2/5.1.1", "Sends stream identifier that is numerically smaller than previous"),
    # jh2 accepts it.
    ("hpack/5.2", "Sends a Huffman-encoded string literal representation padded by zero"),
}


class Page(asyncio.Protocol):
    """Server that responds to each request with the same page."""

    def __init__(self) -> None:
        self.http2 = Http2Server(
            self,
            stream_window=1 << 16,
            window=1 << 20,
            streams_max=STREAMS_MAX,
            header_bytes_max=16_384,
        )
        self.transport: asyncio.Transport | None = None
        self.unsent: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.http2.take_output())

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        try:
            self.http2.receive(data)
        except Http2Error as error:
            self.http2.close(error.code)
        self.transport.write(self.http2.take_output())
        if self.http2.is_closed:
            self.transport.close()

    def on_request(self, stream_id: int, fields: dict[bytes, bytes]) -> None: ...

    def on_data(self, stream_id: int, data: bytes) -> None: ...

    def on_end(self, stream_id: int) -> None:
        self.http2.send_headers(stream_id, FIELDS)
        self.unsent[stream_id] = BODY
        self.on_window(stream_id)

    def on_reset(self, stream_id: int) -> None:
        self.unsent.pop(stream_id, None)

    def on_window(self, stream_id: int) -> None:
        for each in [stream_id] if stream_id else list(self.unsent):
            data = self.unsent.get(each, b"")
            room = max(self.http2.room(each), 0)
            if data and room:
                self.http2.send_data(each, data[:room])
                self.unsent[each] = data = data[room:]
                if not data:
                    self.http2.send_headers(each, header_block([(b"end", b"")]), ends=True)

    def on_goaway(self) -> None: ...


async def failures(report: Path, frame_s: int, *sections: str) -> set[tuple[str, str]]:
    """Return section and title of each case that failed; default: of all sections."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Page, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    words = ["-h", LOOPBACK, "-p", str(port), "-o", str(frame_s), "-j", str(report), *sections]
    child = await asyncio.create_subprocess_exec(
        h2spec(), *words, stdout=asyncio.subprocess.DEVNULL
    )
    await asyncio.wait_for(child.wait(), TIMEOUT_S)
    server.close()
    suites = Xml.parse(report).getroot().iter("testsuite")
    cases = [
        (suite.get("package", ""), case) for suite in suites for case in suite.iter("testcase")
    ]
    assert sections or len(cases) > STREAMS_MAX
    return {
        (section, case.get("classname", ""))
        for section, case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }


def unexpected(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the failed cases that count."""
    return {case for case in found if not case[0].startswith(NOT_VALIDATED)} - DIFFERENT


def test_the_server_conforms_to_http2(tmp_path: Path) -> None:
    """A section with a failure runs again, with a time that a busy machine needs."""
    failed = unexpected(asyncio.run(failures(tmp_path / "report.xml", FRAME_S)))
    if failed:
        sections = sorted({section for section, _ in failed})
        failed = unexpected(asyncio.run(failures(tmp_path / "again.xml", LONG_S, *sections)))
    assert failed == set()
