"""The commands, on the process of a real broker."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.cli.exits import Exit
from duemq_common.clock import FakeClock, SystemClock
from tests.support.commands import (
    TIMEOUT_S,
    Running,
    duemq,
    duemq_process,
    environment,
    start,
)
from tests.support.pop_client import PopClient
from tests.support.running_broker import SMALL, connected


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


def test_send_and_consume(broker: Running) -> None:
    words = ("--key", "order-7", "--count", "2", "--json", *broker.where)
    sent = duemq_process("send", "T", "hello", *words)
    assert sent.returncode == 0, sent.stderr
    lines = [json.loads(line) for line in sent.stdout.splitlines()]
    assert [line["status"] for line in lines] == ["stored", "stored"]
    got = duemq_process("consume", "T", "--from-first", "--count", "2", "--json", *broker.where)
    assert [json.loads(line)["body"] for line in got.stdout.splitlines()] == ["hello", "hello"]


def test_a_body_may_come_from_standard_input(broker: Running) -> None:
    sent = duemq_process("send", "Stdin", "-", *broker.where, input="piped ü")
    assert sent.returncode == 0, sent.stderr
    got = duemq("consume", "Stdin", "--from-first", "--count", "1", *broker.where)
    assert got.stdout.rstrip().endswith("piped ü")


def test_a_level_message_is_delivered_when_due(broker: Running) -> None:
    assert duemq("send", "Later", "due", "--level", "1", *broker.where).returncode == 0
    got = duemq(
        "consume", "Later", "--from-first", "--count", "1", "--wait", "60", "--json", *broker.where
    )
    message = json.loads(got.stdout)
    assert message["body"] == "due"
    assert message["origin_commit_log_offset"] >= 0


def test_levels_show_pending_messages(broker: Running) -> None:
    assert duemq("send", "Waits", "x", "--level", "2", *broker.where).returncode == 0
    [view] = json.loads(duemq("levels", "--json", *broker.where).stdout)
    assert view["levels"][1]["pending"] >= 1
    shown = duemq("levels", *broker.where)
    assert re.search(r"messages? pending", shown.stdout)
    assert "59m" in shown.stdout or "1h" in shown.stdout


def test_message_show_by_offset_id_and_by_unique_key(broker: Running) -> None:
    sent = json.loads(duemq("send", "Show", "body", "--key", "k1", "--json", *broker.where).stdout)
    by_id = duemq("message", "show", sent["offset_message_id"], "--json", *broker.where)
    [message] = json.loads(by_id.stdout)
    assert (message["body"], message["unique_key"]) == ("body", sent["message_id"])
    by_key = duemq("message", "show", sent["message_id"], "--topic", "Show", *broker.where)
    assert by_key.returncode == 0, by_key.stderr
    assert sent["offset_message_id"] in by_key.stdout


@pytest.mark.finding("B5")
def test_message_show_of_a_pending_message_without_its_topic(broker: Running) -> None:
    sent = duemq("send", "Show", "body", "--key", "k2", "--level", "2", "--json", *broker.where)
    for name in ("k2", json.loads(sent.stdout)["message_id"]):
        [message] = json.loads(duemq("message", "show", name, "--json", *broker.where).stdout)
        assert (message["state"], message["topic"], message["body"]) == ("pending", "Show", "body")
        assert message["due_ms"] == message["stored_ms"] + 3_600_000
    shown = duemq("message", "show", "k2", *broker.where)
    assert "pending" in shown.stdout
    assert "scheduled" in shown.stdout


def test_message_show_of_a_popped_message(broker: Running) -> None:
    sent = json.loads(duemq("send", "Popped", "body", "--json", *broker.where).stdout)

    async def pop() -> None:
        async with connected(str(broker.ready["address"])) as remote:
            client = PopClient(remote, FakeClock(SystemClock().now_ms()), "billing")
            popped = await client.pop("Popped", invisibleTime=600_000, bornTime=0)  # never late
            assert len(popped) == 1

    asyncio.run(pop())
    shown = duemq("message", "show", sent["message_id"], *broker.where).stdout
    assert "by group billing, not acknowledged, invisible until" in shown
    words = ("message", "show", sent["message_id"], "--json", *broker.where)
    [message] = json.loads(duemq(*words).stdout)
    [pop_] = message["pops"]
    assert (pop_["group"], pop_["attempt"]) == ("billing", 1)
    assert pop_["invisible_until_ms"] == pop_["popped_ms"] + 600_000


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("message", "show", "F" * 32), Exit.FOUND_FAULT, "no broker has a message"),
        pytest.param(
            ("message", "show", "nonsense"),
            Exit.FOUND_FAULT,
            "no broker has a message nonsense",
            marks=pytest.mark.finding("B6"),
        ),
        (("consume", "NoSuchTopic"), Exit.REFUSED, "topic NoSuchTopic does not exist"),
        (("send", "bad topic!", "x"), Exit.REFUSED, "refused with code"),
    ],
)
def test_what_is_refused_or_missing(
    broker: Running, words: tuple[str, ...], code: Exit, text: str
) -> None:
    done = duemq(*words, "--broker", str(broker.ready["address"]), *broker.where)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_peer_answers() -> None:
    done = duemq("levels", "--namesrv", "127.0.0.1:1")
    assert done.returncode == Exit.UNREACHABLE
    assert "127.0.0.1:1 does not respond" in done.stderr
    assert done.stderr.endswith("; check that it runs, and the address (--namesrv, --broker)\n")


def test_a_file_of_a_command_is_no_broker_that_is_away(tmp_path: Path) -> None:
    """An OSError of a file names it and is not exit code 3, with which scripts try again."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "copy"
    done = duemq("store", "copy", str(tmp_path / "store"), str(target))
    assert done.returncode == Exit.USAGE
    assert done.stderr == f"duemq: {target}: Not a directory\n"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("broker", "-s", "flushDiskType=never"), "flushDiskType=never (command line): must be"),
        (("broker", "-s", "nonsense"), "must be KEY=VALUE"),
        (("broker", "-c", "/no/such/file"), "cannot be read"),
        (("config", "show", "-s", "listenPort=many"), "listenPort=many (command line)"),
        (("namesrv", "-s", "listenPort=-1"), "listenPort=-1"),
        (("levels", "--namesrv", "nowhere"), "is not host:port"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words: tuple[str, ...], text: str) -> None:
    run = duemq if words[0] in ("config", "levels") else duemq_process
    done = run(*words)
    assert (done.returncode, text in done.stderr) == (Exit.USAGE, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_signals_reload_the_configuration_and_stop_cleanly(tmp_path: Path) -> None:
    """SIGHUP and SIGTERM; `store verify` finds no damage afterwards, and damage of a byte."""
    running, store = start(tmp_path), tmp_path / "store"
    assert duemq("send", "T", "some body text", *running.where).returncode == 0
    text = running.conf.read_text().replace("1s 1h", "2s 2h")
    running.conf.write_text(text)
    running.process.send_signal(signal.SIGHUP)
    [view] = json.loads(duemq("levels", "--json", *running.where).stdout)
    assert view["message_delay_level"] == "2s 2h"
    assert json.loads(running.stop()) == {"event": "stopped", "why": ""}
    assert running.process.returncode == 0
    report = duemq("store", "verify", str(store), "--json")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["figures"]["records"] == 1
    [log] = (store / "commitlog").iterdir()
    data = log.read_bytes().replace(b"some body text", b"some BODY text")
    log.write_bytes(data)
    report = duemq("store", "verify", str(store))
    assert report.returncode == Exit.FOUND_FAULT
    assert "The store is damaged" in report.stdout


def test_a_name_server_on_its_own(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "duemq",
            "namesrv",
            "--json",
            "-s",
            "listenPort=0",
            "-s",
            f"kvConfigPath={tmp_path}/kv.json",
            "-s",
            "bindAddress=127.0.0.1",
            "-s",
            "logFormat=json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    done = duemq("levels", "--namesrv", address)
    assert (done.returncode, "no registered broker" in done.stderr) == (Exit.FOUND_FAULT, True)
    process.send_signal(signal.SIGTERM)
    out, log = process.communicate(timeout=TIMEOUT_S)
    assert json.loads(out) == {"event": "stopped", "why": ""}
    assert {json.loads(line)["level"] for line in log.splitlines()} == {"INFO"}


def test_config_show_names_sources_and_unknown_keys(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=shop\nlistenPorts=1\nbrokerIP2=10.0.0.1\n")
    done = duemq("config", "show", "-c", str(conf), "--json")
    shown = json.loads(done.stdout)
    keys = {key["key"]: key for key in shown["keys"]}
    assert keys["brokerName"]["source"] == "broker.conf line 1"
    assert keys["messageDelayLevel"]["section"] == "ScheduleConfig"
    assert shown["notices"] == [
        "unknown key listenPorts (broker.conf line 2), ignored; did you mean listenPort?",
        "Apache's keys without effect: brokerIP2",
    ]


@pytest.mark.finding("B21")
@pytest.mark.parametrize("words", [(), ("send",), ("timers", "cancel"), ("reconcile", "run")])
def test_help_is_requested_with_h(words: tuple[str, ...]) -> None:
    done = duemq(*words, "-h")
    assert (done.returncode, "Usage: " in done.stdout) == (0, True), done.stderr


def test_the_version(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", duemq_process("--version").stdout)


SIGNALLED_WHILE_IT_STARTS = """
import asyncio, os, signal, sys
from duemq.broker.broker import Broker
from duemq.cli.app import app

started = Broker._serve_http

async def signalled(self, stack):
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    await started(self, stack)

Broker._serve_http = signalled
app(sys.argv[1:])
"""


def test_a_signal_while_the_broker_starts_stops_it_cleanly(tmp_path: Path) -> None:
    """Clients are served by then: an end without a stop loses what was reported as done."""
    conf = tmp_path / "broker.conf"
    keys = SMALL | {"storePathRootDir": str(tmp_path / "store"), "messageDelayLevel": "1s 1h"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_STARTS, "broker", "--json", "-c", str(conf)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "configuration reloaded" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"event": "stopped", "why": ""}
    assert not (tmp_path / "store" / "abort").exists()
    assert (tmp_path / "store" / "config" / "delayOffset.json").exists()


SIGNALLED_BEFORE_IT_STARTS = """
import os, pathlib, signal, sys
import duemq.cli.kernels, duemq.cli.serve
from duemq.cli.app import app

compiled, ready = duemq.cli.kernels.compile_if_needed, duemq.cli.serve._on_ready
conf = pathlib.Path(sys.argv[-1])

def compile_slowly(*args, **kwargs):
    conf.write_text(conf.read_text().replace("1s 1h", "2s 2h"))
    os.kill(os.getpid(), signal.SIGHUP)
    return compiled(*args, **kwargs)

def stop(*args):
    ready(*args)
    os.kill(os.getpid(), signal.SIGTERM)

duemq.cli.kernels.compile_if_needed, duemq.cli.serve._on_ready = compile_slowly, stop
app(sys.argv[1:])
"""


@pytest.mark.extended
def test_a_reload_before_the_broker_starts_is_postponed(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    keys = SMALL | {"storePathRootDir": str(tmp_path / "store"), "messageDelayLevel": "1s 1h"}
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_BEFORE_IT_STARTS, "broker", "--json", "-c", str(conf)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "configuration reloaded: messageDelayLevel=2s 2h (was 1s 1h)" in done.stderr
