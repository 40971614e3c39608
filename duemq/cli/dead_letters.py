"""`duemq dlq list`, `show` and `resend`."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta

from duemq.cli.admin_options import DeadLetterOptions
from duemq.cli.confirmation import confirm
from duemq.cli.messages import body_text
from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, print_table
from duemq.cli.times import parse_time, time_cell
from duemq.client.admin import Admin
from duemq.client.admin.dead_letters import DeadLetter, DeadLetterCount, Resent
from duemq.client.message import EPOCH
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

GROUPS = ("group", "#messages", "last message (UTC)")
LETTERS = ("offset", "since (UTC)", "topic", "#retries", "unique id", "body")
RESULTS = ("offset", "topic", "result", "unique id")
BODY_CHARACTERS = 60


def list_groups(target: Target) -> None:
    """Print the groups that have dead letters."""
    counts = asyncio.run(_counts(target))
    if target.as_json:
        print_json(
            [
                {"group": each.group, "messages": each.messages, "last_stored": each.last_stored_at}
                for each in counts
            ]
        )
        return
    rows = [(each.group, f"{each.messages:,}", time_cell(each.last_stored_at)) for each in counts]
    print_table(f"{len(counts)} {plural(len(counts), 'group')} with dead letters", GROUPS, rows)


async def _counts(target: Target) -> list[DeadLetterCount]:
    async with target.admin() as admin:
        return await admin.dead_letter_counts()


def show_letters(group: str, options: DeadLetterOptions, count: int, target: Target) -> None:
    """Print dead letters of a group."""
    letters = asyncio.run(_letters(group, options, count, target))
    if target.as_json:
        print_json([plain_letter(letter) for letter in letters])
        return
    rows = [_row(letter) for letter in letters]
    title = f"{len(letters)} dead {plural(len(letters), 'letter')} of {group}"
    print_table(title, LETTERS, rows, optional=("#retries", "since (UTC)", "unique id"))


async def _letters(
    group: str, options: DeadLetterOptions, count: int, target: Target
) -> list[DeadLetter]:
    async with target.admin() as admin:
        return await _selected(admin, group, options, count)


async def _selected(
    admin: Admin, group: str, options: DeadLetterOptions, count: int
) -> list[DeadLetter]:
    """Return the selected dead letters.

    Raises:
        UsageError: A name is not one of a dead letter.
    """
    names = options.names or []
    letters = await admin.dead_letters(
        group,
        names=names,
        since=_time(options.since),
        until=_time(options.until),
        count=count,
    )
    present = {name for each in letters for name in (each.name, each.message.message_id)}
    if missing := sorted(set(names) - present):
        raise UsageError(f"group {group} has no dead letter {', '.join(missing)}")
    return letters


def _time(text: str) -> datetime | None:
    if not text:
        return None
    return EPOCH + timedelta(milliseconds=parse_time(text, SystemClock().now_ms()))


def resend_letters(
    group: str,
    options: DeadLetterOptions,
    target: Target,
    topic: str,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send the selected dead letters again after a confirmation, and print the result of each."""
    if not (options.names or options.since or options.until or everything):
        raise UsageError("no messages selected: give --id, --since, --until or --all")
    results = asyncio.run(
        _resend(group, options, target, topic, dry_run, yes or bool(options.names))
    )
    counts = Counter(each.status for each in results)
    if target.as_json:
        print_json({"dry_run": dry_run, "results": [plain_result(each) for each in results]})
        return
    title = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    rows = [
        (each.letter.name, each.topic, each.status, each.letter.message.message_id)
        for each in results
    ]
    print_table(title or "no dead letters", RESULTS, rows, optional=("unique id",))


async def _resend(
    group: str, options: DeadLetterOptions, target: Target, topic: str, dry_run: bool, yes: bool
) -> list[Resent]:
    async with target.admin() as admin:
        letters = await _selected(admin, group, options, 0)
        if letters and not (dry_run or yes):
            effect = f"{len(letters):,} {plural(len(letters), 'message')}"
            confirm(f"Send {effect} again", f"dlq resend {group} sends {effect}")
        return await admin.resend_dead_letters(letters, topic=topic, dry_run=dry_run)


def _row(letter: DeadLetter) -> tuple[object, ...]:
    message = letter.message
    body = body_text(_body(letter))
    return (
        letter.name,
        time_cell(message.stored_at),
        letter.topic or "unknown",
        message.record.reconsume_times,
        message.message_id,
        body if len(body) <= BODY_CHARACTERS else body[: BODY_CHARACTERS - 1] + "…",
    )


def _body(letter: DeadLetter) -> bytes:
    try:
        return letter.message.body
    except (ValueError, ImportError):  # it cannot be decompressed
        return letter.message.record.body


def plain_letter(letter: DeadLetter) -> dict[str, object]:
    """Return a dead letter as plain data."""
    message = letter.message
    return {
        "offset": letter.name,
        "stored": message.stored_at,
        "topic": letter.topic,
        "retries": message.record.reconsume_times,
        "unique_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "properties": dict(message.properties),
        "body": body_text(_body(letter)),
    }


def plain_result(result: Resent) -> dict[str, object]:
    """Return the result of one message as plain data."""
    letter = result.letter
    return {
        "offset": letter.name,
        "unique_id": letter.message.message_id,
        "topic": result.topic,
        "result": result.status,
    }
