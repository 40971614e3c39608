"""`duemq accounts`: edit the users of a stopped broker or name server, to recover access."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import AsJson, Configuration
from duemq_common.config import expanded
from duemq_common.errors import UsageError
from duemq_common.existence import is_directory

if TYPE_CHECKING:
    from duemq.auth.config import AuthConfig

accounts_app = group()
NameServer = Annotated[
    bool,
    typer.Option(
        "--name-server", help="The configuration file is that of `duemq namesrv`, not of a broker."
    ),
]


@command(accounts_app, "list", example="accounts list -c broker.conf")
def list_users(
    *, configuration: Configuration, name_server: NameServer = False, as_json: AsJson = False
) -> None:
    """Show the users without their secrets."""
    from duemq.auth.accounts_file import read_accounts
    from duemq.cli.output import print_json, print_table

    path = _file_of(configuration, name_server=name_server)
    users, acls = read_accounts(path)
    rows = [
        (user.name, user.type.value, user.status.value, name in acls)
        for name, user in sorted(users.items())
    ]
    columns = ("user", "type", "status", "has an ACL")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        cells = [(*row[:3], "yes" if row[3] else "no") for row in rows]
        print_table(f"Users in {path}", columns, cells, nothing=f"no users in {path}")


@command(accounts_app, "set", example="accounts set root -c broker.conf")
def set_user(
    name: Annotated[str, typer.Argument(help="User to create, or to change.")],
    *,
    configuration: Configuration,
    name_server: NameServer = False,
) -> None:
    """Make a user an enabled super user with a new secret, read from standard input.

    The broker or name server must be stopped. Its other users and all ACLs stay as they are.
    """
    from duemq.auth.accounts import AccountRefused
    from duemq.auth.accounts_file import open_accounts
    from duemq.auth.model import User, UserStatus, UserType
    from duemq.cli.output import notice

    _check_used(_auth_of(configuration))
    with _stopped(configuration, name_server=name_server):
        path = _file_of(configuration, name_server=name_server)
        accounts = open_accounts(path)
        secret = _new_secret(name)
        try:
            if accounts.user(name) is None:
                accounts.create_user(User(name, secret, UserType.SUPER))
            else:
                accounts.update_user(name, secret, UserType.SUPER, UserStatus.ENABLE)
        except AccountRefused as error:
            raise UsageError(str(error)) from None
    notice(f"{name} is an enabled super user with the new secret, in {path}")


def _auth_of(configuration: Configuration) -> AuthConfig:
    """Return the section of accounts."""
    from duemq.auth.config import AuthConfig
    from duemq_common.config import from_properties

    return from_properties(AuthConfig, configuration.properties())


def _check_used(auth: AuthConfig) -> None:
    """Report that a change of the accounts has no effect.

    Raises:
        UsageError: The accounts are those of plain_acl.yml.
    """
    from duemq.cli.output import notice

    if auth.acl_enable:
        raise UsageError(
            f"aclEnable is true, so the accounts are in {auth.home_text}/conf/plain_acl.yml: edit "
            "this file, which is read again while the process runs"
        )
    if not auth.authentication_enabled:
        notice("authenticationEnabled is not true, so accounts have no effect")


def _file_of(configuration: Configuration, *, name_server: bool) -> Path:
    from duemq.auth.access import accounts_path

    if name_server:
        from duemq.namesrv.config import NamesrvConfig
        from duemq_common.config import from_properties

        config = from_properties(NamesrvConfig, configuration.properties())
        directory = expanded("kvConfigPath", config.kv_config_path).parent
    else:
        directory = _store_of(configuration) / "config"
    return accounts_path(_auth_of(configuration), directory)


def _store_of(configuration: Configuration) -> Path:
    from duemq.configuration.settings import settings_from

    return settings_from(configuration.properties()).store.root


@contextmanager
def _stopped(configuration: Configuration, *, name_server: bool) -> Iterator[None]:
    """Hold the store lock, or the port of the name server, so that neither can start."""
    if name_server:
        with _port_of_name_server(configuration):
            yield
        return
    from message_store.recovery.store_lock import StoreLock

    root = _store_of(configuration)
    if not is_directory(root):
        raise UsageError(
            f"{root} is not a store: give the broker's configuration file with -c, or add "
            "--name-server if it is that of a name server"
        )
    lock = StoreLock(root)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _port_of_name_server(configuration: Configuration) -> Iterator[None]:
    from duemq.configuration.exposure import EVERY_ADDRESS
    from duemq.namesrv.config import NamesrvConfig
    from duemq.net.bound_socket import bind
    from duemq_common.config import from_properties

    config = from_properties(NamesrvConfig, configuration.properties())
    with ExitStack() as stack:
        try:
            stack.enter_context(bind(config.bind_address or EVERY_ADDRESS, config.listen_port))
        except UsageError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
            raise UsageError(
                f"port {config.listen_port} is in use: stop the name server, and retry"
            ) from error
        yield


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
