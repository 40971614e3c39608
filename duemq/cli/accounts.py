"""`duemq accounts`: edit the users of a stopped broker, to recover access."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.options import AsJson, Configuration
from message_store.errors import UsageError

accounts_app = typer.Typer(
    no_args_is_help=True, help="Show and change the users of a stopped broker."
)


@command(accounts_app, "list", example="accounts list -c broker.conf")
def list_users(*, configuration: Configuration, as_json: AsJson = False) -> None:
    """Show the users without their secrets."""
    from duemq.auth.accounts_file import read_accounts
    from duemq.cli.output import print_json, print_table

    users, acls = read_accounts(_file_of(configuration))
    rows = [
        (user.name, user.type.value, user.status.value, name in acls)
        for name, user in sorted(users.items())
    ]
    columns = ("user", "type", "status", "has an ACL")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table("Users", columns, [(*row[:3], "yes" if row[3] else "no") for row in rows])


@command(accounts_app, "set", example="accounts set root -c broker.conf")
def set_user(
    name: Annotated[str, typer.Argument(help="User to create, or to change.")],
    *,
    configuration: Configuration,
) -> None:
    """Make a user an enabled super user with a new secret, read from standard input.

    The broker must be stopped. Its other users and all ACLs stay as they are.
    """
    from duemq.auth.accounts import AccountRefused
    from duemq.auth.accounts_file import open_accounts
    from duemq.auth.model import User, UserStatus, UserType
    from duemq.cli.output import notice

    with _stopped(configuration):
        accounts = open_accounts(_file_of(configuration))
        secret = _new_secret(name)
        try:
            if accounts.user(name) is None:
                accounts.create_user(User(name, secret, UserType.SUPER))
            else:
                accounts.update_user(name, secret, UserType.SUPER, UserStatus.ENABLE)
        except AccountRefused as error:
            raise UsageError(str(error)) from None
    notice(f"{name} is an enabled super user with the new secret")


def _file_of(configuration: Configuration) -> Path:
    from duemq.auth.access import accounts_path
    from duemq.configuration.settings import settings_from

    settings = settings_from(configuration.properties())
    return accounts_path(settings.auth, settings.store.root / "config")


@contextmanager
def _stopped(configuration: Configuration) -> Iterator[None]:
    """Hold the store lock, so that no broker can start."""
    from duemq.configuration.settings import settings_from
    from message_store.recovery.store_lock import StoreLock

    root = settings_from(configuration.properties()).store.root
    if not root.is_dir():
        raise UsageError(f"{root} is not a store: give the broker's configuration file with -c")
    lock = StoreLock(root)
    try:
        yield
    finally:
        lock.release()


def _new_secret(name: str) -> str:
    if sys.stdin.isatty():
        secret: str = typer.prompt(
            f"New secret of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
    else:
        secret = sys.stdin.readline().rstrip("\r\n")
    if not secret.strip():
        raise UsageError("the secret is empty: write it to standard input")
    return secret
