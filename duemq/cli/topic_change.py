"""`duemq topic create` and `delete`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from duemq.cli.admin_options import TopicOptions
from duemq.cli.options import Target
from duemq.cli.output import plural
from duemq.cli.settings_change import SettingsKind, delete_confirmed, first_given
from duemq.cli.topic_show import plain_settings, plain_state
from duemq.client.admin import Admin
from duemq.client.admin.topics import TopicSettings, TopicState
from duemq.client.bulk_decisions import BulkDecisions, PendingSearch
from duemq.client.errors import ClientError, Unsupported
from duemq_common.errors import UsageError

PERMISSIONS = ("RW", "R", "W", "-")
PENDING_MAX: Final = 100_000  # counted before a deletion


def topic_kind(options: TopicOptions) -> SettingsKind[TopicSettings]:
    """Return what a topic with these options is, for `change_settings`."""
    return SettingsKind(
        "topic",
        read=Admin.topic_settings,
        changed=lambda former: changed(former or TopicSettings(), options),
        write=_write,
        text=_text,
        plain=plain_settings,
    )


async def _write(admin: Admin, name: str, value: TopicSettings, broker: str) -> None:
    await admin.create_topic(name, value, brokers=[broker])


def _text(value: TopicSettings) -> str:
    queues = f"{value.read_queues} read and {value.write_queues} write queues"
    return f"{queues}, {value.permission}"


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


def delete_topic(name: str, target: Target, *, dry_run: bool, yes: bool) -> None:
    """Delete a topic after a confirmation; with `dry_run`, print what would be deleted."""

    async def run(admin: Admin) -> None:
        state = await admin.topic(name)
        pending = await _pending(admin, name)
        delete = partial(admin.delete_topic, name)
        plain = {"deleted": plain_state(state), "pending": pending}
        effect = _effect(state, pending)
        await delete_confirmed(
            "topic", name, effect, delete, target, plain, dry_run=dry_run, yes=yes
        )

    target.ask(run)


async def _pending(admin: Admin, name: str) -> int | None:
    """Return the number of pending messages, counted up to `PENDING_MAX`; None: unknown."""
    failures: list[ClientError] = []
    count = 0
    search = BulkDecisions(admin.client).search(
        PendingSearch(topic=name), lambda broker, error: failures.append(error)
    )
    async for page, _ in search:
        count += page.count
        if count >= PENDING_MAX:
            return count
    is_unknown = any(not isinstance(error, Unsupported) for error in failures)  # not Apache's
    return None if is_unknown else count


def _effect(state: TopicState, pending: int | None) -> str:
    brokers = len(state.info.settings)
    text = f"{state.messages:,} stored {plural(state.messages, 'message')} at {brokers} "
    text += plural(brokers, "broker")
    if groups := ", ".join(state.groups):
        text += f", read by {groups}"
    if pending is None:
        text += "; pending messages, whose number is unknown, will be in quarantine when due"
    elif pending:
        more = "or more " if pending >= PENDING_MAX else ""
        noun = plural(pending, "message")
        text += f"; {pending:,} {more}pending {noun} will be in quarantine when due"
    return text
