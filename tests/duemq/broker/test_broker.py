"""The whole broker in one process: start, work, configuration, plugins, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.broker.plugins import installed_plugins
from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import FILE_NAME
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import read_properties
from duemq_common.errors import ConfigError, CorruptStore, PluginError, UsageError
from tests.duemq.distributions import COUNTING_PLUGIN, install
from tests.support.running_broker import connected, running, small

LEVELS = "1s 5s"


def test_what_is_sent_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (_, client):
            sent = await client.send("T", b"hello", KEYS="k")
            assert (sent.code, (sent.fields or {})["queueOffset"]) == (0, "0")
            pulled = await client.pull("T", 0)
            assert pulled.code == 0
            assert b"hello" in bytes(pulled.body)

    asyncio.run(main())
    assert not (tmp_path / "store" / "abort").exists()


def test_a_level_message_is_delivered_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with running(small(tmp_path, messageDelayLevel=LEVELS), clock=clock) as (_, client):
            await client.send("T", b"first")
            await client.send("T", b"later", DELAY="1")
            pull = asyncio.create_task(client.pull("T", 1))
            clock.advance(999)
            assert (await client.call(RequestCode.GET_MAX_OFFSET, QUEUE)).fields == {"offset": "1"}
            clock.advance(1)
            assert b"later" in bytes((await pull).body)

    asyncio.run(main())


QUEUE = {"topic": "T", "queueId": 0}


def test_a_restart_keeps_topics_progress_and_pending_messages(tmp_path: Path) -> None:
    clock = FakeClock()
    properties = small(tmp_path, messageDelayLevel=LEVELS)
    commit = {**QUEUE, "consumerGroup": "g", "commitOffset": 1}

    async def before() -> None:
        async with running(properties, clock=clock) as (_, client):
            await client.send("T", b"now")
            await client.send("T", b"later", DELAY="2")
            await client.pull("T", 0)
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)

    async def after() -> None:
        async with running(properties, clock=clock) as (broker, client):
            assert broker.parts.topics.find("T") is not None
            query = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, commit)
            assert (query.fields or {})["offset"] == "1"
            clock.advance(5_000)
            assert b"later" in bytes((await client.pull("T", 1)).body)

    asyncio.run(before())
    asyncio.run(after())


def test_a_stop_finishes_a_write_of_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    properties = small(tmp_path, flushConsumerOffsetInterval="100")
    commit = {**QUEUE, "consumerGroup": "g", "commitOffset": 1}

    write = ConfigFile.save

    async def before() -> None:
        waits, may_write = asyncio.Event(), asyncio.Event()

        async def save(file: ConfigFile, value: dict[str, object]) -> None:
            if file.path.name == FILE_NAME:
                waits.set()
                await may_write.wait()
            await write(file, value)

        async with running(properties) as (_, client):
            await client.send("T", b"now")
            await client.pull("T", 0)
            monkeypatch.setattr(ConfigFile, "save", save)
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            await waits.wait()
            asyncio.get_running_loop().call_later(0.25, may_write.set)

    async def after() -> None:
        async with running(properties) as (_, client):
            query = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, commit)
            assert (query.fields or {})["offset"] == "1"

    asyncio.run(before())
    asyncio.run(after())
    assert [
        each.message for each in caplog.records if each.name.startswith("apscheduler.exec")
    ] == []


def test_the_name_server_inside_knows_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        properties = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with running(properties) as (broker, client):
            await client.send("T", b"hello")
            async with connected(broker.namesrv_address) as namesrv:
                route = await namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert broker.address.encode() in bytes(route.body)

    asyncio.run(main())


# -- starting fails ---------------------------------------------------------------------------


async def enter(properties: dict[str, str]) -> None:
    async with Broker(properties):
        raise AssertionError("it must not start")


def test_a_port_in_use_is_found_before_the_store_is_touched(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f":{port}.*in use.*listenPort"):
            asyncio.run(enter(small(tmp_path, listenPort=str(port))))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"flushDiskType": "x"}, "flushDiskType=x"),
        ({"messageDelayLevel": "1s 5x"}, "messageDelayLevel"),
        ({"aclEnable": "true"}, "rocketmqHome"),
    ],
)
def test_a_bad_value_stops_the_start(tmp_path: Path, properties: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        asyncio.run(enter(small(tmp_path, **properties)))


def test_a_torn_table_stops_the_start_and_leaves_the_store_closed(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{torn")
    with pytest.raises(CorruptStore, match=r"topics\.json"):
        asyncio.run(enter(small(tmp_path)))
    (config / "topics.json").unlink()

    async def again() -> None:
        async with running(small(tmp_path)):
            pass

    asyncio.run(again())


# -- configuration ----------------------------------------------------------------------------


def test_request_25_changes_what_is_live_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# levels of the shop\nmessageDelayLevel = 1s\nbrokerName = test\n")
    properties = read_properties(path).merged(small(tmp_path))

    async def main() -> None:
        async with running(properties, config_file=path) as (broker, client):
            body = b"messageDelayLevel=3s 9s\nmaxMessageSize=77\nsendMessageThreadPoolNums=1"
            response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            assert (response.code, response.remark) == (0, None)
            assert broker.store.config.message_bytes_max == 77
            shown = await client.call(RequestCode.GET_BROKER_CONFIG)
            lines = bytes(shown.body).decode().splitlines()
            assert "messageDelayLevel=3s 9s" in lines
            assert "maxMessageSize=77" in lines

    asyncio.run(main())
    text = path.read_text()
    assert text.startswith("# levels of the shop\nmessageDelayLevel = 3s 9s\nbrokerName = test\n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"brokerConfigPath=x", ResponseCode.NO_PERMISSION),
        (b"maxMessageSize=77\nrocketmqHome=/", ResponseCode.NO_PERMISSION),
        (b"maxMessageSize=big", ResponseCode.SYSTEM_ERROR),
        (b"maxMessageSize=77\nmessageDelayLevel=1x", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_refused_change_changes_nothing(tmp_path: Path, body: bytes, code: int) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, client):
            before = broker.all_properties()
            response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            assert response.code == code
            assert broker.all_properties() == before

    asyncio.run(main())


def test_a_reload_takes_the_file_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("transactionCheckMax=3\n")

    def read() -> object:
        return read_properties(path).merged(small(tmp_path))

    async def main() -> None:
        async with running(read(), config_file=path, read_again=read) as (broker, _):
            assert broker.config.transaction_checks_max == 3
            for text, expected in (("4", 4), ("four", 4), ("5", 5)):
                path.write_text(f"transactionCheckMax={text}\n")
                broker.reload()
                assert broker.config.transaction_checks_max == expected

    asyncio.run(main())


# -- plugins ----------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    yield path
    sys.modules.pop("counting", None)
    sys.modules.pop("failing", None)


def test_an_installed_plugin_takes_part(tmp_path: Path, site: Path) -> None:
    install(site, "counting", COUNTING_PLUGIN)

    async def main() -> None:
        async with running(small(tmp_path, countingWord="bad")) as (broker, client):
            assert broker.parts.topics.find("COUNTING_TOPIC") is not None
            assert (await client.send("T", b"good")).code == 0
            refused = await client.send("T", b"a bad one")
            assert (refused.code, refused.remark) == (13, "bad is not taken")
            response = await client.call(9100)
            assert response.fields == {"counted": "1", "task": "True"}
            view = await client.call(RequestCode.GET_VIEW, {"view": "counting.count"})
            assert json.loads(bytes(view.body)) == {"counted": 1}
            await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"countingWord=good")
            assert (await client.send("T", b"good")).code == 13

    asyncio.run(main())


def test_a_disabled_plugin_takes_no_part(tmp_path: Path, site: Path) -> None:
    install(site, "counting", COUNTING_PLUGIN)

    async def main() -> None:
        async with running(small(tmp_path, brokerPluginDisabled="counting")) as (broker, client):
            assert "counting" not in broker.plugins.plugins
            assert (await client.call(9100)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    asyncio.run(main())


FAILING = """
from contextlib import asynccontextmanager
from delayed_delivery.plugin import PluginBase

class Failing(PluginBase):
    @asynccontextmanager
    async def running(self, store):
        raise ValueError("no wheel")
        yield

def create_plugin(host):
    return Failing()
"""


def test_a_plugin_that_cannot_start_stops_the_start(tmp_path: Path, site: Path) -> None:
    install(site, "failing", FAILING)
    with pytest.raises(PluginError, match="plugin failing cannot start: ValueError: no wheel"):
        asyncio.run(enter(small(tmp_path)))


DYING = """
import asyncio
from contextlib import asynccontextmanager
from delayed_delivery.plugin import PluginBase
from duemq_common.request import Response

class Dying(PluginBase):
    def __init__(self):
        self.end = asyncio.Event()

    def request_handlers(self):
        return {9100: self.answer}

    async def answer(self, request):
        self.end.set()
        return Response()

    @asynccontextmanager
    async def running(self, store):
        async def work():
            await self.end.wait()
            raise ValueError("the wheel broke")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            yield

def create_plugin(host):
    return Dying()
"""


def test_a_task_that_fails_ends_the_broker_and_surfaces(tmp_path: Path, site: Path) -> None:
    install(site, "failing", DYING)

    async def main() -> None:
        async with Broker(small(tmp_path)) as broker, connected(broker.address) as client:
            with contextlib.suppress(OSError):  # the broker may be gone before it answers
                await client.call(9100)
            await broker.stopped()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(ValueError, match="the wheel broke")
    assert not (tmp_path / "store" / "abort").exists()


def python_of(page: str) -> str:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / page).read_text()
    return text.split("```python\n", 1)[1].split("```", 1)[0]


def test_the_plugin_of_the_how_to_works(tmp_path: Path, site: Path) -> None:
    install(site, "counting", python_of("write-a-plugin.md"))

    async def main() -> None:
        async with running(small(tmp_path)) as (_, client):
            assert (await client.send("T", b"open")).code == 0
            assert (await client.send("T", b"a secret")).code == 13
            assert (await client.call(9100)).fields == {"stored": "1"}

    asyncio.run(main())


def test_the_level_service_is_an_installed_plugin() -> None:
    assert "schedule_service" in [item.name for item in installed_plugins()]


def test_a_plugin_may_stop_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _):
            broker.stop("plugin timer: its files are damaged")
            await broker.stopped()
            assert broker.failure == "plugin timer: its files are damaged"

    asyncio.run(main())


# -- views ------------------------------------------------------------------------------------


def test_metrics_are_served(tmp_path: Path) -> None:
    properties = small(tmp_path, metricsExporterType="PROM", metricsPromExporterPort="0")

    def read(port: int | None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text: str = page.read().decode()
            return text

    async def main() -> None:
        async with running(properties) as (broker, client):
            await client.send("T", b"later", DELAY="3")
            text = await asyncio.to_thread(read, broker.metrics_port)
        assert "duemq_up 1.0" in text
        assert "rocketmq_messages_in_total{" in text
        assert 'level="3"' in text

    asyncio.run(main())


def test_the_levels_view_counts_pending_messages(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            for _ in range(3):
                await client.send("T", b"later", DELAY="2")
            response = await client.call(RequestCode.GET_VIEW, {"view": "schedule_service.levels"})
            view = json.loads(bytes(response.body))
            level = view["levels"][1]
            assert (view["pending"], level["level"], level["pending"]) == (3, 2, 3)
            assert level["next_due_ms"] == clock.now_ms() + 5_000

    asyncio.run(main())


def test_an_unknown_view_names_the_known_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (_, client):
            response = await client.call(RequestCode.GET_VIEW, {"view": "nothing"})
            assert response.code == ResponseCode.TOPIC_NOT_EXIST
            assert "schedule_service.levels" in str(response.remark)

    asyncio.run(main())
