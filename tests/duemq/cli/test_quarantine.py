"""`duemq quarantine`: a message whose topic was deleted is listed, and sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from duemq.cli.exits import Exit
from duemq_common.codes import RequestCode
from tests.support.commands import Running, duemq, start
from tests.support.running_broker import connected


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


async def delete_topic(address: str, name: str) -> None:
    async with connected(address) as remote:
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        assert (await remote.call(code, {"topic": name})).code == 0


@pytest.mark.finding("3D11")
def test_a_quarantined_message_is_shown_and_sent_again(broker: Running) -> None:
    where = broker.where
    assert duemq("quarantine", "list", *where).stdout.startswith("0 messages in quarantine")
    sent = duemq("send", "Gone", "hello", "--key", "k", "--at", "+1h", *where)
    assert sent.returncode == 0, sent.stderr
    asyncio.run(delete_topic(str(broker.ready["address"]), "Gone"))

    assert duemq("timers", "fire", "--key", "k", *where).returncode in (0, 1)
    options = ("--from-first", "--count", "1", "--wait", "60")
    line = duemq("consume", "DUEMQ_QUARANTINE", *options, *where).stdout
    assert "topic_missing: the topic Gone does not exist  topic Gone  hello" in line
    [item] = json.loads(duemq("quarantine", "list", "--json", *where).stdout)
    assert (item["topic"], item["reason"], item["body"]) == ("Gone", "topic_missing", "hello")
    assert json.loads(duemq("quarantine", "list", "--topic", "T", "--json", *where).stdout) == []

    shown = duemq("quarantine", "show", "0", *where).stdout
    assert "topic_missing" in shown
    assert "REAL_TOPIC = Gone" in shown
    [complete] = [json.loads(duemq("quarantine", "show", "0", "--json", *where).stdout)]
    assert complete["properties"]["KEYS"] == "k"

    assert duemq("quarantine", "resend", *where).returncode == Exit.USAGE
    missing = duemq("quarantine", "resend", "--id", "9", *where)
    assert (missing.returncode, "quarantine is 9" in missing.stderr) == (Exit.USAGE, True)
    unconfirmed = duemq("quarantine", "resend", "--all", "--topic", "Back", *where)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (Exit.USAGE, True)
    chosen = ("quarantine", "resend", "--all", "--topic", "Back")
    assert "1 would be sent" in duemq(*chosen, "--dry-run", *where).stdout
    assert "1 sent" in duemq(*chosen, "--yes", *where).stdout
    by_id = ("quarantine", "resend", "--id", item["unique_key"], "--topic", "Back")
    assert "1 already sent" in duemq(*by_id, *where).stdout
    for other in (("--from-topic", "T"), ("--group", "g"), ("--until", "2020-01-01T00:00")):
        assert duemq(*chosen, *other, "--dry-run", *where).stdout == "no messages\n", other
    selected = (
        "quarantine",
        "resend",
        "--from-topic",
        "Gone",
        "--since",
        "2020-01-01T00:00",
        "--dry-run",
    )
    result = duemq(*selected, "--json", *where)
    assert (result.returncode, json.loads(result.stdout)["counts"]) == (0, {"would be sent": 1})
    got = duemq("consume", "Back", *options, "--json", *where).stdout.splitlines()
    [message] = map(json.loads, got)
    assert (message["body"], message["properties"]["KEYS"]) == ("hello", "k")
    assert not {"REAL_TOPIC", "TIMER_OUT_MS", "TIMER_DELIVER_MS"} & message["properties"].keys()
