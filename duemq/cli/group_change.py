"""`duemq group create`, `delete` and `reset`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial

from duemq.cli.admin_options import GroupOptions
from duemq.cli.confirmation import confirm
from duemq.cli.group_show import described
from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, print_table
from duemq.cli.settings_change import SettingsKind, delete_confirmed
from duemq.cli.times import parse_time, span_ms
from duemq.client.admin import Admin
from duemq.client.admin.groups import (
    EARLIEST,
    LATEST,
    GroupSettings,
    OffsetChange,
    ResetTo,
)
from duemq.client.admin.undelivered import DATETIME_MS_MAX
from duemq.client.message import EPOCH
from duemq_common.clock import SystemClock

COLUMNS = ("broker", "#queue", "#offset", "#new offset", "#change")


def group_kind(options: GroupOptions) -> SettingsKind[GroupSettings]:
    """Return what a group with these options is, for `change_settings`."""
    return SettingsKind(
        "group",
        read=Admin.group_settings,
        changed=lambda former: changed_group(former or GroupSettings(), options),
        write=_write,
        text=_text,
        plain=asdict,
    )


async def _write(admin: Admin, name: str, value: GroupSettings, broker: str) -> None:
    await admin.create_group(name, value, brokers=[broker])


def _text(value: GroupSettings) -> str:
    return f"{value.retries} {'retry' if value.retries == 1 else 'retries'}"


def changed_group(settings: GroupSettings, options: GroupOptions) -> GroupSettings:
    """Return settings with the given options."""
    given = {name: value for name, value in asdict(options).items() if value is not None}
    return replace(settings, **given)


def delete_group(
    name: str, target: Target, *, dead_letters: bool, dry_run: bool, yes: bool
) -> None:
    """Delete a group after a confirmation; with `dry_run`, print what would be deleted."""

    async def run(admin: Admin) -> None:
        effect = await described(admin, name) + (", its dead letters" if dead_letters else "")
        delete = partial(admin.delete_group, name, dead_letters=dead_letters)
        plain = {"group": name, "dead_letters": dead_letters}
        await delete_confirmed(
            "group", name, effect, delete, target, plain, dry_run=dry_run, yes=yes
        )

    target.ask(run)


def reset_group(
    name: str, topic: str, to: str, target: Target, *, dry_run: bool, yes: bool
) -> None:
    """Reset the offsets of a group after a confirmation, and print them."""
    time = reset_time(to)

    async def reset(admin: Admin) -> list[OffsetChange]:
        changes = await admin.reset_offsets(name, topic, time, dry_run=True)
        if not (dry_run or yes):
            effect = f"group reset {name} {topic} changes offsets: {_effect(changes)}"
            confirm(lambda: f"Reset group {name} in topic {topic}: {_effect(changes)}", effect)
        return changes if dry_run else await admin.reset_offsets(name, topic, time)

    changes = target.ask(reset)
    if target.as_json:
        plain = [
            {
                "broker": each.queue.broker_name,
                "queue": each.queue.queue_id,
                "former": each.former,
                "offset": each.offset,
            }
            for each in changes
        ]
        print_json({"group": name, "topic": topic, "dry_run": dry_run, "queues": plain})
        return
    title = f"{name} in {topic}: {_effect(changes)}"
    title += ", dry run: nothing was changed" if dry_run else ""
    print_table(title, COLUMNS, [_row(change) for change in changes])


def reset_time(text: str) -> ResetTo:
    """Return the time of a reset: `earliest`, `latest`, `-2h`, or as for other commands.

    Raises:
        UsageError: The text is none of these.
    """
    if text == EARLIEST:
        return EARLIEST
    if text == LATEST:
        return LATEST
    now_ms = SystemClock().now_ms()
    span = span_ms(text[1:]) if text[:1] == "-" else None
    time_ms = parse_time(text, now_ms) if span is None else max(now_ms - span, 0)
    return EPOCH + timedelta(milliseconds=min(time_ms, DATETIME_MS_MAX))


def _effect(changes: Sequence[OffsetChange]) -> str:
    back = sum(max((each.former or 0) - each.offset, 0) for each in changes)
    skipped = sum(max(each.offset - (each.former or 0), 0) for each in changes)
    return f"{back:,} {plural(back, 'message')} again, {skipped:,} skipped"


def _row(change: OffsetChange) -> tuple[object, ...]:
    former = change.former
    difference = change.offset - (former or 0)
    return (
        change.queue.broker_name,
        change.queue.queue_id,
        "none" if former is None else f"{former:,}",
        f"{change.offset:,}",
        f"{difference:+,}",
    )
