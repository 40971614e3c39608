"""`duemq init`: write a configuration file with comments from the declarations of its keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from delayed_delivery.level_delays import DEFAULT_LEVELS
from duemq_common.config import Option, Properties, options, value_text
from duemq_common.errors import UsageError

WIDTH: Final = 100
HEADER: Final = """\
# DueMQ broker. The keys are Apache RocketMQ's; a broker.conf for Apache's broker works unchanged.
# Every key with its value, default and source: duemq config show
# A variable of the environment, such as DUEMQ_BROKER_NAME, replaces the value of its key.
"""
GROUPS: Final[tuple[tuple[str, dict[str, str | None]], ...]] = (
    ("", {"brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0"}),
    (
        "Ports and addresses. With bindAddress = 0.0.0.0 and without accounts, every client that "
        "reaches the ports may send and read.",
        {
            "listenPort": "10911",
            "brokerIP1": None,
            "bindAddress": None,
            "authenticationEnabled": None,
            "grpcServerPort": None,
        },
    ),
    (
        "Name servers to register with (Apache's or DueMQ's), or a name server in this process.",
        {"namesrvAddr": None, "embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "9876"},
    ),
    (
        "Store. A store of Apache's broker 4.9 or 5.x works unchanged; stop that broker first.",
        {
            "storePathRootDir": "~/store",
            "flushDiskType": "ASYNC_FLUSH",
            "fileReservedTime": "72",
            "deleteWhen": "04",
        },
    ),
    (
        "Delays. After a change of the levels, pending messages keep their due times.",
        {
            "messageDelayLevel": DEFAULT_LEVELS,
            "timerMaxDelaySec": "3456000",  # 40 days
        },
    ),
    (
        "Console, http://127.0.0.1:8088/ with consolePort = 8088, and the HTTP API below /api/v1. "
        "Without certificates, this machine only reaches the port.",
        {"consolePort": None},
    ),
    (
        "Prometheus: http://127.0.0.1:5557/metrics; bindAddress or metricsPromExporterHost opens "
        "the port to other machines.",
        {"metricsExporterType": "PROM", "metricsPromExporterPort": "5557"},
    ),
)
"""Keys of the file by subject; with a value: set, None: a comment with the default."""


def write_configuration(file: Path, *, every_key: bool) -> None:
    """Write a new configuration file, and print how to use it.

    Args:
        every_key: Whether the other keys follow, as comments with their defaults.

    Raises:
        UsageError: The file exists or cannot be written.
    """
    from duemq.cli.config_show import broker_sections

    text = configuration_text(broker_sections(Properties()), every_key=every_key)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists: name a new file, or remove it first") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    print(f"{file} is written; start the broker with: duemq broker -c {file}")


def configuration_text(sections: Iterable[type], *, every_key: bool) -> str:
    """Return the text of a configuration file with the keys of `GROUPS`, or with every key."""
    sections = list(sections)
    declared = {item.key: item for section in sections for item in options(section)}
    parts = [HEADER]
    for title, values in GROUPS:
        entries = (_entry(declared[key], value) for key, value in values.items())
        parts.append(_group(title, entries))
    if every_key:
        first = {key for _, values in GROUPS for key in values}
        for section in sections:
            rest = [item for item in options(section) if item.key not in first]
            summary = (section.__doc__ or "").splitlines()[0]
            parts.append(_group(summary, (_entry(item, None) for item in rest)))
    return "\n".join(parts)


def _group(title: str, entries: Iterable[str]) -> str:
    heading = ["\n".join(_comment(f"--- {title}")) + "\n"] if title else []
    return "\n".join([*heading, *entries])


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _entry(item: Option, value: str | None) -> str:
    """Return the comment of a key and its line; without a value, the line is a comment, too."""
    default = value_text(item.default)
    facts = [item.unit] if item.unit and item.unit not in item.doc else []
    if item.choices:
        facts.append(" | ".join(item.choices))
    if value is not None and value != default:
        facts.append(f"default: {default}" if default else "default: empty")
    text = item.doc + (f" ({'; '.join(facts)})" if facts else "")
    shown = default if value is None else value
    line = f"{'' if value is not None else '# '}{item.key} = {shown}".rstrip()
    return "\n".join([*_comment(text), line]) + "\n"
