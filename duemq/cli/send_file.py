"""`duemq timers import` and `duemq send --from`: send the messages of a file, each once.

A message is skipped if its unique id exists in the topic, or if a copy is pending. The same file
can therefore be sent again, for example after an interruption.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from duemq.cli.exits import Exit, fail
from duemq.cli.message_file import FileMessage, read_file
from duemq.cli.options import Target
from duemq.cli.output import console, notice, print_json_line, print_table
from duemq.cli.sending_once import EXISTS, NO_ID, REFUSED, SEND, OnceSender
from duemq_common.errors import UsageError

BATCH_MESSAGES: Final = 500


def send_file(path: Path, target: Target, *, really: bool) -> None:
    """Print what would be sent; with `really`, send it."""
    done: Counter[str] = Counter()
    incomplete = asyncio.run(_send_all(path, target, really, done))
    counts = {name: done[name] for name in (SEND, EXISTS, NO_ID)}
    if done[REFUSED]:
        counts[REFUSED] = done[REFUSED]
    if target.as_json:
        print_json_line({"dry_run": not really, **counts})
    else:
        titles = {
            SEND: "sent" if really else "to send",
            EXISTS: "already exists",
            NO_ID: "not sent: no id",
            REFUSED: "refused by the broker",
        }
        rows = [(titles[name], f"{count:,}") for name, count in counts.items()]
        print_table(str(path), ("action", "#messages"), rows)
        if not really:
            console().print("Nothing was sent: this was a dry run. Add --yes to send.")
    if incomplete is not None:
        raise incomplete
    if done[REFUSED]:
        fail(f"{done[REFUSED]} messages were refused; their reasons are above", Exit.REFUSED)


async def _send_all(
    path: Path, target: Target, really: bool, done: Counter[str]
) -> UsageError | None:
    """Send the messages of a file; return the error of the first malformed line."""
    messages = read_file(path)
    async with target.client() as client:
        sender = OnceSender(client)
        while True:
            batch, error = _next_batch(messages)
            if error is not None and not batch and not done:
                raise error
            actions = await sender.actions(batch)
            if really:
                sent = [each for each, action in zip(batch, actions, strict=True) if action == SEND]
                outcomes = iter(await sender.send_all(sent))
                actions = [next(outcomes) if action == SEND else action for action in actions]
            _report(batch, actions, sender, as_json=target.as_json)
            done.update(actions)
            if error is not None or len(batch) < BATCH_MESSAGES:
                return error


def _next_batch(messages: Iterable[FileMessage]) -> tuple[list[FileMessage], UsageError | None]:
    batch: list[FileMessage] = []
    try:
        for each in islice(messages, BATCH_MESSAGES):
            batch.append(each)
    except UsageError as error:
        return batch, error
    return batch, None


def _report(
    batch: list[FileMessage], actions: list[str], sender: OnceSender, *, as_json: bool
) -> None:
    for each, action in zip(batch, actions, strict=True):
        if as_json:
            print_json_line({"unique_id": each.unique_id, "topic": each.topic, "what": action})
        elif action == REFUSED:
            notice(f"{each.unique_id}: {sender.refusals[each.topic, each.unique_id]}")
