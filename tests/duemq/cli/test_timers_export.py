"""`duemq timers export`, `import` and `transfer` between running brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.cli.message_file import read_file
from duemq.testing import LocalBroker
from duemq_common.clock import SystemClock
from tests.support.commands import duemq

HOUR_MS = 3_600_000


@pytest.fixture
def source() -> Iterator[LocalBroker]:
    with LocalBroker(brokerName="source", timerMaxDelaySec="604800") as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[LocalBroker]:
    with LocalBroker(brokerName="target", timerMaxDelaySec="86400") as broker:
        yield broker


def ran(*words: str, code: int = 0) -> Any:
    done = duemq(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def put_messages(broker: LocalBroker) -> dict[str, int]:
    """Send messages with levels and due times; return the due times of timers by body."""
    where = ("--broker", broker.address)
    due_ms = {f"timer {hours}": SystemClock().now_ms() + hours * HOUR_MS for hours in (1, 2, 100)}
    for body, due in due_ms.items():
        ran("send", "orders", body, "--at", str(due), "--key", "k", "--tag", "t", *where)
    for level in (16, 17):
        ran("send", "orders", f"level {level}", "--level", str(level), *where)
    return due_ms


def exported(broker: LocalBroker, file: Path) -> list[dict[str, Any]]:
    ran("timers", "export", str(file), "--broker", broker.address)
    _, *lines, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert end == {"messages": len(lines)}
    return sorted(lines, key=lambda line: line["due_ms"])


@pytest.mark.sampled
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_import_stores_each_message_once(
    source: LocalBroker, target: LocalBroker, tmp_path: Path, suffix: str
) -> None:
    due_ms = put_messages(source)
    lines = exported(source, tmp_path / "first.jsonl")
    assert {line["topic"] for line in lines} == {"orders"}
    file, where = tmp_path / f"pending{suffix}", ("--broker", target.address)
    ran("timers", "export", str(file), "--broker", source.address)
    messages = {message.body.decode(): message for message in read_file(file)}
    assert {body: messages[body].due_ms for body in due_ms} == due_ms
    assert messages["timer 1"].properties["KEYS"] == "k"
    assert ran("timers", "import", str(file), *where)["send"] == 5
    counts = ran("timers", "import", str(file), "--yes", *where, code=4)
    assert (counts["send"], counts["refused"]) == (4, 1)  # 100 hours are too far ahead
    counts = ran("timers", "import", str(file), "--yes", *where, code=4)
    assert (counts["send"], counts["exists"], counts["refused"]) == (0, 4, 1)
    again = exported(target, tmp_path / "again.jsonl")
    same = ("topic", "queue_id", "unique_id", "due_ms", "body")
    assert [[line[name] for name in same] for line in again] == [
        [line[name] for name in same] for line in lines[:-1]
    ]
    target.advance(hours=3)
    assert sorted(each.body for each in target.messages("orders")) == [
        b"level 16",
        b"level 17",
        b"timer 1",
        b"timer 2",
    ]
    counts = ran("timers", "import", str(file), "--yes", *where, code=4)
    assert counts["exists"] == 4


def test_a_torn_file_is_imported_up_to_the_tear(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    put_messages(source)
    exported(source, tmp_path / "whole.jsonl")
    data = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn.jsonl").write_bytes(b"".join(data[:3]) + data[3][:20])
    words = ("timers", "import", str(tmp_path / "torn.jsonl"), "--broker", target.address)
    done = duemq(*words, "--json", "--yes")
    assert done.returncode == 2
    assert "torn.jsonl:4: not an output of" in done.stderr
    assert len(exported(target, tmp_path / "target.jsonl")) == 2
    (tmp_path / "torn.jsonl").write_bytes(b"".join(data[:3]))
    done = duemq(*words, "--json", "--yes")
    assert "torn.jsonl:3: the file is incomplete, it ends after 2 messages" in done.stderr


def test_a_transfer_empties_the_source(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    put_messages(source)
    soon = str(SystemClock().now_ms() + HOUR_MS // 6)
    ran("send", "orders", "soon", "--at", soon, "--broker", source.address)
    where = ("--broker", source.address, "--to", target.address)
    words = ("timers", "transfer", *where, "--margin", str(HOUR_MS // 5 // 1_000))
    states = ran(*words)["messages"]
    assert states["transferred"] == 5
    assert len(exported(source, tmp_path / "dry.jsonl")) == 6
    states = ran(*words, "--yes", code=4)["messages"]
    assert (states["transferred"], states["stays: due soon"], states["refused"]) == (4, 1, 1)
    left = exported(source, tmp_path / "left.jsonl")
    assert len(left) == 2
    assert len(exported(target, tmp_path / "target.jsonl")) == 4
    states = ran(*words, "--yes", code=4)["messages"]
    assert states["transferred"] == 0
    source.advance(hours=3)
    assert [each.body for each in source.messages("orders")] == [b"soon"]


def test_an_interrupted_transfer_continues(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    put_messages(source)
    file = tmp_path / "pending.jsonl"
    exported(source, file)
    ran("timers", "import", str(file), "--broker", target.address, "--yes", code=4)
    words = ("timers", "transfer", "--broker", source.address, "--to", target.address)
    states = ran(*words, "--yes", code=4)["messages"]
    assert states["was at the target, cancelled at the source"] == 4
    assert len(exported(source, tmp_path / "left.jsonl")) == 1
    assert len(exported(target, tmp_path / "target.jsonl")) == 4
