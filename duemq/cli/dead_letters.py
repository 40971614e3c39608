"""Output of `duemq dlq list` and `show`."""

from __future__ import annotations

from duemq.cli.admin_options import UndeliveredOptions
from duemq.cli.messages import body_text
from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, print_table
from duemq.cli.resend import search_of, selected
from duemq.cli.times import time_cell
from duemq.client.admin.dead_letters import DeadLetter

GROUPS = ("group", "#messages", "last message (UTC)")
LETTERS = ("offset", "since (UTC)", "topic", "#retries", "unique id", "body")
BODY_CHARACTERS = 60


def list_groups(target: Target) -> None:
    """Print the groups that have dead letters."""
    counts = target.ask(lambda admin: admin.dead_letter_counts())
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


def show_letters(group: str, options: UndeliveredOptions, count: int, target: Target) -> None:
    """Print dead letters of a group."""
    search = search_of(options, letters_of=group)
    items = target.ask(lambda admin: selected(admin, search, count))
    letters = [item for item in items if isinstance(item, DeadLetter)]
    if target.as_json:
        print_json([plain_letter(letter) for letter in letters])
        return
    rows = [_row(letter) for letter in letters]
    title = f"{len(letters)} dead {plural(len(letters), 'letter')} of {group}"
    print_table(title, LETTERS, rows, optional=("#retries", "since (UTC)", "unique id"))


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
