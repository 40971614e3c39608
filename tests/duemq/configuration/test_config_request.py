"""A request changes a key only if its declaration allows it."""

from __future__ import annotations

import pytest

from duemq.cli.config_show import broker_sections
from duemq.configuration.config_request import VALUE_CHARS_MAX, accepted_changes
from duemq.namesrv.config import NamesrvConfig
from duemq_common.config import Option, Properties, options
from duemq_common.errors import ConfigError, RequestError

WORDS = {"deleteWhen", "messageDelayLevel"}
NAMES_OF_PLACES = ("path", "url", "addr", "host", "dir", "file", "cron", "command", "class", "port")
SECTIONS = broker_sections(Properties())


def opened() -> list[Option]:
    return [i for s in (*SECTIONS, NamesrvConfig) for i in options(s) if i.wire]


@pytest.mark.finding("A5")
def test_open_keys_are_numbers_switches_and_named_words() -> None:
    assert {item.key for item in opened() if item.kind is str} == WORDS
    for item in opened():
        assert not item.key.lower().endswith(NAMES_OF_PLACES), item.key
        assert item.live, f"{item.key}: a request must not prepare what the next start does"


def call(changes: dict[str, str], *closed: str) -> dict[str, str]:
    return accepted_changes(changes, SECTIONS, frozenset(closed), source="request 25")


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"fileReservedTime": "48"}, {"fileReservedTime": "48"}),
        ({"messageDelayLevel": "1s 5s"}, {"messageDelayLevel": "1s 5s"}),
        ({"sendMessageThreadPoolNums": "4"}, {}),  # Apache's, without effect here
        ({"migrateAuthFromV1Enabled": "false"}, {}),
    ],
)
def test_open_keys_are_accepted(changes: dict[str, str], accepted: dict[str, str]) -> None:
    assert call(changes) == accepted


@pytest.mark.finding("A5")
@pytest.mark.parametrize(
    "key",
    [
        "storePathRootDir",
        "storePathCommitLog",
        "reconcileReport",
        "reconcileCron",
        "reconcileMemory",
        "reconcileLedgerUrl",
        "migrationLedgerUrl",
        "namesrvAddr",
        "listenPort",
        "bindAddress",
        "brokerIP1",
        "metricsPromExporterHost",
        "brokerPluginDisabled",
        "embeddedNamesrvEnable",
        "configBlackList",
        "mappedFileSizeCommitLog",
        "flushDiskType",
    ],
)
def test_closed_keys_are_refused_beside_open_ones(key: str) -> None:
    with pytest.raises(RequestError, match=key) as refusal:
        call({"fileReservedTime": "48", key: "1"})
    assert refusal.value.code == 16


@pytest.mark.finding("A14")
@pytest.mark.parametrize(
    "key", ["x\nstorePathRootDir=/tmp/evil\n#", "a b", "", "fileReservedTimes"]
)
def test_unknown_keys_are_refused_and_shown_on_one_line(key: str) -> None:
    with pytest.raises(RequestError) as refusal:
        call({key: "1"})
    assert refusal.value.remark.isprintable()


def test_the_operators_list_closes_open_keys() -> None:
    with pytest.raises(RequestError, match="fileReservedTime"):
        call({"fileReservedTime": "48"}, "fileReservedTime")


@pytest.mark.finding("A14")
@pytest.mark.parametrize("value", ["1\n2", "1\x1b[2J", "9" * (VALUE_CHARS_MAX + 1), "\ud800"])
def test_values_that_do_not_belong_into_a_file_are_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        call({"deleteWhen": value})


def test_a_value_that_promises_too_much_is_refused_although_its_key_has_no_effect() -> None:
    with pytest.raises(ConfigError, match="migrateAuthFromV1Enabled"):
        call({"migrateAuthFromV1Enabled": "true"})
