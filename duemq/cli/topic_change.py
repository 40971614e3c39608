"""`duemq topic create` and `delete`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from duemq.cli.admin_options import TopicOptions
from duemq.cli.confirmation import confirm
from duemq.cli.exits import Exit, fail
from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, printable
from duemq.cli.topic_show import plain_settings, plain_state
from duemq.client.admin.topics import TopicSettings, TopicState
from duemq_common.errors import UsageError

Value = TypeVar("Value")
PERMISSIONS = ("RW", "R", "W", "-")
CREATED, CHANGED, SAME = "created", "changed", "unchanged"


def create_topic(
    name: str,
    options: TopicOptions,
    brokers: Sequence[str],
    target: Target,
    *,
    update: bool,
    dry_run: bool,
) -> None:
    """Create or change a topic broker by broker, and print the result of each."""
    asyncio.run(_create(name, options, brokers, target, update, dry_run))


async def _create(
    name: str,
    options: TopicOptions,
    brokers: Sequence[str],
    target: Target,
    update: bool,
    dry_run: bool,
) -> None:
    async with target.admin() as admin:
        plan: list[tuple[str, str, TopicSettings]] = []
        for master in await admin.masters(brokers):
            former = await admin.topic_settings(master.address, name)
            value = changed(former or TopicSettings(), options)
            result = CREATED if former is None else SAME if value == former else CHANGED
            plan.append((master.name, result, value))
        if not update and any(result == CHANGED for _, result, _ in plan):
            names = ", ".join(broker for broker, result, _ in plan if result == CHANGED)
            text = f"topic {name} exists with other settings at {names}: change it with --update"
            fail(text, Exit.REFUSED)
        for broker, result, value in plan:
            if not dry_run and result != SAME:
                await admin.create_topic(name, value, brokers=[broker])
            if not target.as_json:
                _print_result(name, broker, result, value, dry_run)
    if target.as_json:
        results = [
            {"broker": broker, "result": result, **plain_settings(value)}
            for broker, result, value in plan
        ]
        print_json({"topic": name, "dry_run": dry_run, "results": results})


def changed(settings: TopicSettings, options: TopicOptions) -> TopicSettings:
    """Return settings with the given options.

    Raises:
        UsageError: A permission or an attribute is malformed.
    """
    permission = options.permission.upper() or settings.permission
    if permission == "WR":
        permission = "RW"
    if permission not in PERMISSIONS:
        raise UsageError(f"--permission {options.permission}: give RW, R, W or -")
    attributes = dict(settings.attributes)
    if options.kind:
        attributes["message.type"] = options.kind.upper()
    for text in options.attributes or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or set(",+") & set(text):
            raise UsageError(f"--attribute {text}: give NAME=VALUE, without , and +")
        attributes[name] = value
    read, write = options.read_queues, options.write_queues
    return replace(
        settings,
        read_queues=first_given(read, options.queues, settings.read_queues),
        write_queues=first_given(write, options.queues, settings.write_queues),
        readable="R" in permission,
        writable="W" in permission,
        attributes=attributes,
    )


def first_given(*values: Value | None) -> Value:
    """Return the first value that is given."""
    return next(value for value in values if value is not None)


def _print_result(name: str, broker: str, result: str, value: TopicSettings, dry_run: bool) -> None:
    text = f"would be {result}" if dry_run and result != SAME else result
    queues = f"{value.read_queues} read and {value.write_queues} write queues"
    print(printable(f"{broker}: {name} {text}: {queues}, {value.permission}"))


def delete_topic(name: str, target: Target, *, dry_run: bool, yes: bool) -> None:
    """Delete a topic after a confirmation; with `dry_run`, print what would be deleted."""
    asyncio.run(_delete(name, target, dry_run, yes))


async def _delete(name: str, target: Target, dry_run: bool, yes: bool) -> None:
    async with target.admin() as admin:
        state = await admin.topic(name)
        if not (dry_run or yes):
            effect = f"topic delete {name} deletes {_effect(state)}"
            confirm(f"Delete topic {name} with {_effect(state)}", effect)
        if not dry_run:
            await admin.delete_topic(name)
    if target.as_json:
        print_json({"dry_run": dry_run, "deleted": plain_state(state)})
        return
    text = "would be deleted" if dry_run else "deleted"
    print(printable(f"topic {name} {text}: {_effect(state)}"))


def _effect(state: TopicState) -> str:
    brokers = len(state.info.settings)
    text = f"{state.messages:,} stored {plural(state.messages, 'message')} at {brokers} "
    text += plural(brokers, "broker")
    groups = ", ".join(state.groups)
    return f"{text}, read by {groups}" if groups else text
