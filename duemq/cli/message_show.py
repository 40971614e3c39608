"""`duemq message show`: state and history of a message.

DueMQ brokers return the history (request 9002). Apache's brokers are queried for the record only,
by offset message id, or by unique key and topic.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any, Final

from duemq.cli.exits import Exit, fail
from duemq.cli.messages import body_text, describe, table_time, time_text
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, heading, print_json, table
from duemq.cli.times import duration_text
from duemq.client.admin.messages import QUERY_COUNT, TIME_MS_MAX
from duemq.client.client import Client
from duemq.client.routes import bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from message_store.log.offset_id import decode_offset_id
from message_store.log.record import Record, split_records

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("event", "at (UTC)", "due (UTC)", "#log offset", "place", "remark")
OPTIONAL: Final = ("remark", "place", "#log offset")
FIRST_SHOWN: Final = ("state", "reason", "due", "delivered", "stored", "born", "body", "topic")
TIMES: Final = ("due_ms", "delivered_ms", "born_ms", "stored_ms")


def show_message(name: str, topic: str, target: Target) -> None:
    """Print the messages with this id or key; exit 1 if there is none."""
    shown, more = asyncio.run(_find(name, topic, target))
    if not shown:
        where = f" of topic {topic}" if topic else ""
        fail(f"no broker has a message {name}{where}", Exit.FOUND_FAULT)
    if target.as_json:
        print_json(shown)
        return
    for one in shown:
        _print_message(one)
    if more:
        print(f"Only the newest {len(shown)} messages are shown; there are more.")


async def _find(name: str, topic: str, target: Target) -> tuple[list[dict[str, object]], bool]:
    """Return (messages of all brokers as plain data, whether there are more)."""
    histories: list[dict[str, object]] = []
    more = False
    body = json.dumps({"name": name, "topic": topic}).encode()
    async with target.client() as client:
        for broker_name, address in await client.masters():
            response = await client.call(
                address, RequestCode.FIND_MESSAGE, body=body, timeout_s=CALL_TIMEOUT_S
            )
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                records = await _find_records(client, address, name, topic)
                histories += [
                    {"broker": broker_name or address, **describe(one)} for one in records
                ]
            elif response.code != ResponseCode.SUCCESS:
                raise RequestError(response.code, response.remark or "")
            else:
                value = json.loads(bytes_of(response))
                more |= value["more"]
                histories += [_described(broker_name or address, one) for one in value["messages"]]
    return histories, more


def _described(broker: str, history: dict[str, Any]) -> dict[str, Any]:
    """Return a message for `--json`: times also as text, body as text."""
    shown = {"broker": broker, **history, "body": body_text(b64decode(history["body"]))}
    for name in TIMES:
        time_ms = history[name]
        shown[name.removesuffix("_ms")] = None if time_ms is None else time_text(time_ms)
    for record in history["records"]:
        record["stored"] = time_text(record["store_ms"])
    return shown


def _print_message(shown: dict[str, Any]) -> None:
    from rich.console import Group

    out = console()
    facts = table("", ("", ""), _facts(shown))
    facts.show_header = False
    parts = [heading(str(shown.get("unique_key") or shown["offset_message_id"])), facts]
    if "records" in shown:
        rows = [_row(record) for record in shown["records"]]
        history = fitted(COLUMNS, rows, optional=OPTIONAL, width=out.width)
        parts += ["", heading("history"), history]
    out.print(Group(*parts, ""))


def _facts(shown: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the non-empty fields of a message as table rows."""
    if shown.get("due_ms") is not None and shown.get("delivered_ms") is not None:
        off_ms = shown["delivered_ms"] - shown["due_ms"]
        off = duration_text(abs(off_ms)) + (" late" if off_ms >= 0 else " early")
        shown = {**shown, "delivered": f"{shown['delivered']} ({off})"}
    facts = []
    rest = [name for name in shown if name not in (*FIRST_SHOWN, "records", *TIMES)]
    for name in (*FIRST_SHOWN, *rest):
        value = shown.get(name)
        if value in (None, "", {}):
            continue
        if isinstance(value, dict):
            value = "\n".join(f"{key} = {text}" for key, text in value.items())
        facts.append((name.replace("_", " "), str(value)))
    return facts


def _row(record: dict[str, Any]) -> tuple[object, ...]:
    due_ms = record["due_ms"]
    position = f"{record['topic']}/{record['queue_id']}/{record['queue_offset']}"
    return (
        record["event"],
        table_time(record["store_ms"]),
        table_time(due_ms),
        record["commit_log_offset"],
        position,
        record["detail"],
    )


async def _find_records(client: Client, address: str, name: str, topic: str) -> list[Record]:
    if topic:
        return await _find_by_key(client, address, name, topic)
    try:
        _, _, offset = decode_offset_id(name)
    except (ValueError, OverflowError):
        return []
    fields = {"offset": offset}
    response = await client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
    return split_records(bytes_of(response)) if response.code == ResponseCode.SUCCESS else []


async def _find_by_key(client: Client, address: str, key: str, topic: str) -> list[Record]:
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": QUERY_COUNT,
        "beginTimestamp": 0,
        "endTimestamp": TIME_MS_MAX,
        "_UNIQUE_KEY_QUERY": True,
    }
    response = await client.call(address, RequestCode.QUERY_MESSAGE, fields)
    if response.code != ResponseCode.SUCCESS:
        return []
    return [record for record in split_records(bytes_of(response)) if key in _keys(record)]


def _keys(record: Record) -> set[str]:
    properties = record.properties
    return {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")}
