"""Creation, change and deletion of a topic or a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from duemq.cli.confirmation import confirm
from duemq.cli.exits import Exit, fail
from duemq.cli.options import Target
from duemq.cli.output import print_json, printable
from duemq.client.admin import Admin

Value = TypeVar("Value")
Settings = TypeVar("Settings")
CREATED, CHANGED, SAME = "created", "changed", "unchanged"


@dataclass(frozen=True, slots=True)
class SettingsKind(Generic[Settings]):
    """What differs between topics and groups.

    Attributes:
        noun: `topic` or `group`.
        read: Returns the settings at the address of a broker; None: it does not have the topic.
        changed: Returns settings with the options of the command; None: those of a new topic.
        write: Creates or changes the topic at a broker name.
        text, plain: Settings as text, and as plain data.
    """

    noun: str
    read: Callable[[Admin, str, str], Awaitable[Settings | None]]
    changed: Callable[[Settings | None], Settings]
    write: Callable[[Admin, str, Settings, str], Awaitable[None]]
    text: Callable[[Settings], str]
    plain: Callable[[Settings], Mapping[str, object]]


def change_settings(
    kind: SettingsKind[Settings],
    name: str,
    brokers: Sequence[str],
    target: Target,
    *,
    update: bool,
    dry_run: bool,
) -> None:
    """Create or change a topic or a group, and print the result of each broker.

    Raises:
        SystemExit: It exists with other settings, and `update` is False.
    """

    async def change(admin: Admin) -> list[tuple[str, str, Settings]]:
        plan: list[tuple[str, str, Settings]] = []
        for master in await admin.masters(brokers):
            former = await kind.read(admin, master.address, name)
            value = kind.changed(former)
            result = CREATED if former is None else SAME if value == former else CHANGED
            plan.append((master.name, result, value))
        if not update and any(result == CHANGED for _, result, _ in plan):
            names = ", ".join(broker for broker, result, _ in plan if result == CHANGED)
            text = f"{kind.noun} {name} exists with other settings at {names}: "
            fail(text + "change it with --update", Exit.REFUSED)
        for broker, result, value in plan:
            if not dry_run and result != SAME:
                await kind.write(admin, name, value, broker)
            if not target.as_json:
                text = f"would be {result}" if dry_run and result != SAME else result
                print(printable(f"{broker}: {name} {text}: {kind.text(value)}"))
        return plan

    plan = target.ask(change)
    if target.as_json:
        results = [
            {"broker": broker, "result": result, **kind.plain(value)}
            for broker, result, value in plan
        ]
        print_json({kind.noun: name, "dry_run": dry_run, "results": results})


async def delete_confirmed(
    noun: str,
    name: str,
    effect: str,
    delete: Callable[[], Awaitable[None]],
    target: Target,
    plain: Mapping[str, object],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete a topic or a group after a confirmation, and print what was deleted.

    Args:
        noun: `topic` or `group`.
        effect: What is deleted, for the confirmation.
        plain: The same as plain data.
        dry_run: Print it, and delete nothing.
    """
    if not (dry_run or yes):
        action = f"Delete {noun} {name} with {effect}"
        confirm(lambda: action, f"{noun} delete {name} deletes {effect}")
    if not dry_run:
        await delete()
    if target.as_json:
        print_json({"dry_run": dry_run, **plain})
        return
    print(printable(f"{noun} {name} {'would be deleted' if dry_run else 'deleted'}: {effect}"))


def first_given(*values: Value | None) -> Value:
    """Return the first value that is given."""
    return next(value for value in values if value is not None)
