"""gRPC server for v5 clients: TLS, accounts, clients that do not read, stop of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.hpack import Decoder
from jh2.settings import SettingCodes

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.service import SERVICE
from tests.duemq.v5.conftest import Run
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.certificates import Authority, trusting_context
from tests.support.free_ports import free_ports
from tests.support.replica_rig import until
from tests.support.running_broker import small
from tests.support.v5_client import (
    message,
    metadata,
    sending,
    signed,
    typed_topic,
    v5_caller,
)

WAIT_S = 60
FRAME_HEAD_BYTES, DATA, HEADERS = 9, 0, 1
SALE = Credentials("sale", "sale-secret")


def broker_with(home: Path, **keys: str) -> Broker:
    return Broker(small(home, grpcServerPort=str(free_ports(1)[0]), **keys))


def test_metrics_count_connections_of_v5_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", "127.0.0.1")
    keys = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
    }

    async def main() -> None:
        async with broker_with(tmp_path, **keys) as broker:
            figures = broker.parts.memory
            async with (
                v5_caller(broker.grpc_port) as plain,
                v5_caller(broker.grpc_port, authority=authority.path.read_bytes()) as encrypted,
            ):
                for caller in (plain, encrypted):
                    await caller.call(api.HeartbeatRequest(client_type=v2.PRODUCER))
                assert (figures.open_count, figures.encrypted_count) == (2, 1)
            await until(lambda: not figures.open_count)
            assert figures.encrypted_count == 0

    asyncio.run(main())


def test_tls_and_plaintext_share_the_port(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server", "localhost")

    async def main() -> list[int]:
        keys = {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(files.certificate),
            "tls.server.keyPath": str(files.key),
        }
        async with broker_with(tmp_path, **keys) as broker:
            await typed_topic(broker, "norm", "NORMAL")
            found = []
            trusted = authority.path.read_bytes()
            address = f"localhost:{broker.grpc_port}"
            credentials = grpc.ssl_channel_credentials(trusted)
            plain = grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_port}")
            for channel in (grpc.aio.secure_channel(address, credentials), plain):
                async with channel:
                    method = channel.unary_unary(
                        SERVICE + "SendMessage",
                        response_deserializer=api.SendMessageResponse.FromString,
                    )
                    data = sending(message("norm")).SerializeToString()
                    response = await method(data, metadata=metadata(), timeout=WAIT_S)
                    found.append(int(response.status.code))
            return found

    assert asyncio.run(main()) == [v2.OK, v2.OK]


def test_tls_negotiates_h2(run: Run, broker: Broker) -> None:
    async def main() -> str | None:
        context = trusting_context()
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", broker.grpc_port, ssl=context)
        socket: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        return socket.selected_alpn_protocol()

    assert run(main()) == "h2"


def test_calls_require_an_account_with_permission(tmp_path: Path) -> None:
    async def main() -> dict[str, int]:
        async with broker_with(tmp_path, **KEYS) as broker:
            for name in ("orders", "other"):
                await typed_topic(broker, name, "NORMAL")
            steps = user_steps(SALE, {"Topic:orders": ["Pub"]})
            await prepare_all(broker.address, ROOT, steps)
            found = {}
            for name, fields, topic in (
                ("allowed", signed(SALE.access_key, SALE.secret), "orders"),
                ("other topic", signed(SALE.access_key, SALE.secret), "other"),
                ("wrong secret", signed(SALE.access_key, "x"), "orders"),
                ("unknown user", signed("absent", "x"), "orders"),
                ("unsigned", metadata(), "orders"),
            ):
                async with v5_caller(broker.grpc_port, fields) as caller:
                    response = await caller.call(sending(message(topic)))
                    found[name] = int(response.status.code)
                    route = api.QueryRouteRequest(topic=v2.Resource(name=topic))
                    found[name + ", route"] = int((await caller.call(route)).status.code)
            async with v5_caller(broker.grpc_port, signed(SALE.access_key, SALE.secret)) as caller:
                status, _ = await caller.receive("orders", "g")
                found["receive"] = int(status.code)
            return found

    found = asyncio.run(main())
    assert found.pop("allowed") == found.pop("allowed, route") == v2.OK
    assert set(found.values()) == {v2.UNAUTHORIZED}, found


def test_peers_without_an_account_do_not_fill_the_table_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duemq.v5.clients.CLIENTS_MAX", 1)
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="orders")
    command = api.TelemetryCommand(settings=settings).SerializeToString()
    heartbeat = api.HeartbeatRequest(client_type=v2.PRODUCER)

    async def main() -> list[int]:
        async with broker_with(tmp_path, **KEYS) as broker:
            await typed_topic(broker, "orders", "NORMAL")
            await prepare_all(broker.address, ROOT, user_steps(SALE, {"Topic:orders": ["Pub"]}))
            found = []
            for n in range(3):
                for fields in (metadata(f"x@{n}"), signed(SALE.access_key, "forged", f"x@{n}")):
                    async with v5_caller(broker.grpc_port, fields) as caller:
                        found.append(int((await caller.call(heartbeat)).status.code))
                        stream = caller.telemetry()
                        await stream.write(command)
                        refusal = await stream.read()
                        found.append(int(refusal.status.code))
                        assert await stream.read() is grpc.aio.EOF
            async with v5_caller(broker.grpc_port, signed(SALE.access_key, SALE.secret)) as caller:
                found.append(int((await caller.call(sending(message("orders")))).status.code))
            return found

    with caplog.at_level("WARNING", "duemq.audit"):
        *refused, served = asyncio.run(main())
    assert set(refused) == {v2.UNAUTHORIZED}
    assert served == v2.OK
    lines = [each.getMessage() for each in caplog.records if each.name == "duemq.audit"]
    assert sum("check signature failed." in line for line in lines) == 6
    assert sum("username cannot be null." in line for line in lines) == 6


class SlowPeer:
    """HTTP/2 client that never opens its window, so that responses stay in the broker."""

    def __init__(self, *, window_bytes: int = 0) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.http2.local_settings.update({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        self.http2.initiate_connection()
        self.stream_id = -1

    def call(self, name: str, *messages: bytes, end: bool = True) -> bytes:
        """Return the bytes of one call."""
        self.stream_id += 2
        fields = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + name)]
        fields += [(":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")]
        self.http2.send_headers(self.stream_id, [*fields, *metadata("slow@1")])
        data = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)
        self.http2.send_data(self.stream_id, data, end_stream=end)
        found: bytes = self.http2.data_to_send()
        return found


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, Any]]:
    """Yield DATA and HEADERS frames: their type, and bytes or header fields."""
    decoder = Decoder()
    decoder.max_allowed_table_size = 1 << 16
    while True:
        head = await asyncio.wait_for(reader.readexactly(FRAME_HEAD_BYTES), WAIT_S)
        data = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == DATA:
            yield DATA, data
        elif head[3] == HEADERS:
            yield HEADERS, dict(decoder.decode(data, raw=True))


def test_calls_end_after_their_client_has_sent_goaway(run: Run, broker: Broker) -> None:
    """The Node.js client ends its stream, sends GOAWAY, and waits."""
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="norm")
    command = api.TelemetryCommand(settings=settings).SerializeToString()

    async def main() -> list[Any]:
        peer = SlowPeer(window_bytes=1 << 16)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.grpc_port)
        writer.write(peer.http2.data_to_send() + peer.call("Telemetry", command))
        peer.http2.ping(b"goodbye!")
        ping = peer.http2.data_to_send()
        peer.http2.close_connection()
        writer.write(peer.http2.data_to_send() + ping)
        found = []
        async for kind, content in frames(reader):
            found.append(content)
            if kind == HEADERS and b"grpc-status" in content:
                break
        assert await asyncio.wait_for(reader.read(), WAIT_S) is not None  # the broker closes
        writer.close()
        return found

    headers, response, trailers = run(main())
    assert headers[b":status"] == b"200"
    assert api.TelemetryCommand.FromString(response[5:]).status.code == v2.OK
    assert trailers[b"grpc-status"] == b"0"


def test_memory_of_a_client_that_does_not_read_is_limited(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are refused once unread responses exceed the client's share; others are served."""
    monkeypatch.setattr("duemq.net.memory.UNREAD_BYTES_MAX", (1 << 16, 1 << 16, 1 << 16))

    async def main() -> int:
        for _ in range(8):
            async with v5_caller(broker.grpc_port) as caller:
                await caller.call(sending(message("mixed", b"x" * 19_000)))
        peer = SlowPeer()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.grpc_port)
        writer.write(peer.http2.data_to_send())
        for n in range(20):
            request = api.ReceiveMessageRequest(
                group=v2.Resource(name=f"slow-{n}"),
                batch_size=32,
                message_queue=v2.MessageQueue(topic=v2.Resource(name="mixed"), id=-1),
            )
            request.invisible_duration.FromSeconds(30)
            request.filter_expression.type = v2.TAG
            writer.write(peer.call("ReceiveMessage", request.SerializeToString()))
            await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1 << 16), 0.2)
        used = broker.parts.memory.used_bytes
        async with v5_caller(broker.grpc_port) as caller:
            assert (await caller.call(sending(message("norm")))).status.code == v2.OK
        writer.close()
        return used

    assert 60_000 < run(main()) < 400_000


def test_unread_commands_of_a_telemetry_stream_are_limited(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.v5.client_calls.UNSENT_BYTES_MAX", 0)
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.add(name="norm")
    command = api.TelemetryCommand(settings=settings).SerializeToString()

    async def main() -> tuple[int, dict[bytes, bytes]]:
        peer, responses = SlowPeer(), 0
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.grpc_port)
        writer.write(peer.http2.data_to_send())
        writer.write(peer.call("Telemetry", command, command, command, end=False))
        async for kind, content in frames(reader):
            if kind == DATA:
                responses += 1
            elif b"grpc-status" in content:
                break
            else:
                window = (1 << 16).to_bytes(4, "big")  # the client starts reading
                writer.write(b"\0\0\4\x08\0" + peer.stream_id.to_bytes(4, "big") + window)
        writer.close()
        return responses, content

    responses, trailers = run(main())
    assert responses == 1  # of three
    assert trailers[b"grpc-status"] == b"8"


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * (1 << 18),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\1\1\5\0\0\0\1\xff",
    ],
    ids=["preface", "http1", "frames", "headers"],
)
def test_bytes_other_than_http2_close_the_connection(run: Run, broker: Broker, data: bytes) -> None:
    async def main() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.grpc_port)
        writer.write(data)
        with contextlib.suppress(ConnectionResetError):  # the broker left some bytes unread
            await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()

    run(main())


def test_a_stop_ends_streams_and_answers_pending_calls(tmp_path: Path) -> None:
    async def main() -> tuple[int, Any]:
        broker = broker_with(tmp_path)
        await broker.__aenter__()
        await typed_topic(broker, "norm", "NORMAL")
        async with v5_caller(broker.grpc_port) as caller:
            stream = caller.telemetry()
            settings = v2.Settings(client_type=v2.PRODUCER)
            settings.publishing.topics.add(name="norm")
            await caller.settings(stream, settings)
            receiving = asyncio.create_task(caller.receive("norm", "g", poll_ms=20_000))
            await until(lambda: len(broker.parts.long_polls) > 0)
            await broker.__aexit__(None, None, None)
            status, _ = await receiving
            return int(status.code), await stream.read()

    code, end = asyncio.run(main())
    assert code == v2.MESSAGE_NOT_FOUND
    assert end == grpc.aio.EOF
