"""`duemq group list` and `show`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, print_table
from duemq.cli.times import time_cell
from duemq.client.admin import Admin
from duemq.client.admin.groups import GroupInfo, GroupProgress, GroupSettings, GroupState
from duemq_common.topics import RETRY_PREFIX

COLUMNS = ("group", "brokers", "#members", "model", "#rate", "#lag", "topics")
NAMES = ("group", "brokers", "#retries")
SETTINGS = ("broker", "state", "#retries", "#retry queues", "broadcast", "ordered", "begins")
MEMBERS = ("member", "address", "language", "#version")
SUBSCRIPTIONS = ("topic", "filter", "kind")
QUEUES = ("topic", "broker", "#queue", "#offset", "#end", "#lag", "last consumed (UTC)")
PARALLEL_MAX = 16


def show_groups(target: Target, *, with_lag: bool) -> None:
    """Print the groups; with `with_lag`, also what they have not consumed."""
    if not with_lag:
        _show_names(target.ask(lambda admin: admin.groups()), target)
        return
    states = target.ask(_states)
    if target.as_json:
        print_json([plain_group(state) for state in states])
        return
    rows = [_row(state) for state in states]
    title = f"{len(states)} {plural(len(states), 'group')}"
    print_table(title, COLUMNS, rows, optional=("topics", "brokers", "model"))


def _show_names(groups: list[GroupInfo], target: Target) -> None:
    if target.as_json:
        print_json([plain_names(group) for group in groups])
        return
    rows = [
        (group.name, ", ".join(group.settings), next(iter(group.settings.values())).retries)
        for group in groups
    ]
    print_table(f"{len(groups)} {plural(len(groups), 'group')}", NAMES, rows)


async def _states(admin: Admin) -> list[GroupState]:
    room = asyncio.Semaphore(PARALLEL_MAX)

    async def state(info: GroupInfo) -> GroupState:
        async with room:
            return await admin.group_state(info)

    return await asyncio.gather(*(state(info) for info in await admin.groups()))


def _row(state: GroupState) -> tuple[object, ...]:
    topics = [each.topic for each in state.subscriptions if not each.topic.startswith(RETRY_PREFIX)]
    return (
        state.info.name,
        ", ".join(state.info.settings),
        len(state.members),
        state.message_model.lower(),
        f"{state.rate:,.1f}",
        f"{state.lag:,}",
        ", ".join(topics),
    )


def show_group(name: str, target: Target) -> None:
    """Print a group with its members, subscriptions and offsets."""
    state = target.ask(lambda admin: admin.group(name))
    if target.as_json:
        print_json(plain_group(state))
        return
    count = len(state.members)
    title = f"{name}: {count} {plural(count, 'member')}, lag {state.lag:,}, {state.rate:,.1f}/s"
    rows = [_setting_row(broker, value) for broker, value in state.info.settings.items()]
    print_table(title, SETTINGS, rows)
    members = [
        (each.client_id, each.address, each.language, each.version) for each in state.members
    ]
    print_table("" if members else "no members are connected", MEMBERS, members)
    subscriptions = [(each.topic, each.expression, each.kind) for each in state.subscriptions]
    if subscriptions:
        print_table("", SUBSCRIPTIONS, subscriptions)
    queues = [_queue_row(queue) for queue in state.queues]
    print_table("" if queues else "no offsets are committed", QUEUES, queues)


def _setting_row(broker: str, value: GroupSettings) -> tuple[object, ...]:
    return (
        broker,
        "enabled" if value.enabled else "disabled",
        value.retries,
        value.retry_queues,
        "yes" if value.broadcast else "no",
        "yes" if value.ordered else "no",
        "first" if value.from_first else "last",
    )


def _queue_row(progress: GroupProgress) -> tuple[object, ...]:
    return (
        progress.queue.topic,
        progress.queue.broker_name,
        progress.queue.queue_id,
        f"{progress.offset:,}",
        f"{progress.max_offset:,}",
        f"{progress.lag:,}",
        time_cell(progress.last_consumed_at),
    )


def plain_names(group: GroupInfo) -> dict[str, object]:
    """Return a group and its settings as plain data."""
    brokers = {broker: asdict(value) for broker, value in group.settings.items()}
    return {"group": group.name, "brokers": brokers}


def plain_group(state: GroupState) -> dict[str, object]:
    """Return a group with its members, subscriptions and offsets as plain data."""
    subscriptions = [
        {"topic": each.topic, "filter": each.expression, "kind": each.kind}
        for each in state.subscriptions
    ]
    queues = [
        {
            "topic": each.queue.topic,
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "offset": each.offset,
            "end": each.max_offset,
            "lag": each.lag,
            "last_consumed": each.last_consumed_at,
        }
        for each in state.queues
    ]
    return plain_names(state.info) | {
        "lag": state.lag,
        "rate": state.rate,
        "consume_type": state.consume_type,
        "model": state.message_model,
        "members": list(map(asdict, state.members)),
        "subscriptions": subscriptions,
        "queues": queues,
    }


async def described(admin: Admin, name: str) -> str:
    """Return what is lost with a group, as text."""
    state = await admin.group(name)
    count = len(state.members)
    members = f", {count} {plural(count, 'member')} connected" if count else ""
    return f"the offsets of {len(state.queues)} {plural(len(state.queues), 'queue')}{members}"
