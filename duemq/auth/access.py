"""Access control of a process, built from its configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from duemq.auth.accounts import AccountRefused, Accounts
from duemq.auth.accounts_file import ACCOUNTS_FILE, open_accounts
from duemq.auth.audit import AuditLog
from duemq.auth.config import AuthConfig, codes_of, first_user, inner_client
from duemq.auth.gate import Gate, GateRules
from duemq.auth.model import User, UserType
from duemq.auth.plain_files import POLL_MS, PlainFiles
from duemq.auth.plain_gate import PlainGate
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.config import expanded
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request

log = logging.getLogger(__name__)


class AccessControl(Struct, frozen=True):
    """Access check, audit log and accounts of a process.

    Attributes:
        accounts: Users and ACLs; None: ACL 1.0 is used.
        files: Files of ACL 1.0; None: ACL 1.0 is off.
    """

    gate: Gate | PlainGate
    audit: AuditLog
    accounts: Accounts | None = None
    files: PlainFiles | None = None

    def audit_view(self, request: Request) -> dict[str, object]:
        """Return a page of the audit log; see `AuditLog.view`.

        Raises:
            RequestError: The account of the request may not change the cluster.
        """
        if not self.gate.rights(request)["administer"]:
            text = "the audit log is for accounts with Update on the cluster"
            raise RequestError(ResponseCode.NO_PERMISSION, text)
        return self.audit.view(request.fields)

    async def poll(self) -> None:
        """Reload changed files of ACL 1.0."""
        if self.files is not None:
            self.files.poll()

    @asynccontextmanager
    async def polling(self, clock: Clock) -> AsyncIterator[None]:
        """Poll the files of ACL 1.0 while the block is active, without a scheduler."""
        ended = asyncio.Event()

        async def poll_on() -> None:
            while not ended.is_set():
                await clock.wait(ended, until_ms=clock.now_ms() + POLL_MS)
                await self.poll()

        task = asyncio.create_task(poll_on(), name="accounts")
        try:
            yield
        finally:
            ended.set()
            await task


def accounts_path(config: AuthConfig, config_directory: Path) -> Path:
    """Return the path of the accounts file."""
    if config.accounts_file:
        return expanded("accountsFile", config.accounts_file)
    return config_directory / ACCOUNTS_FILE


def open_access(
    config: AuthConfig, config_directory: Path, cluster: str, now_ms: Callable[[], int]
) -> AccessControl | None:
    """Return the access control of a process; None if it is off.

    Raises:
        CorruptStore: The accounts file cannot be used.
        ConfigError: A configured user cannot be created.
    """
    if not config.is_on:
        return None
    audit = AuditLog(now_ms)
    if config.acl_enable:
        files = PlainFiles(expanded("rocketmqHome", config.home_text))
        gate = PlainGate(lambda: files.rules, lambda: files.version, audit, cluster)
        return AccessControl(gate, audit, files=files)
    path = accounts_path(config, config_directory)
    accounts = open_accounts(path)
    create_configured_users(config, accounts)
    if not len(accounts):
        log.warning(
            "%s has no users, so every request is refused: set initAuthenticationUser, or run "
            "`duemq accounts set` on this machine while the broker is stopped",
            path,
        )
    rules = GateRules(
        cluster=cluster,
        authorize=config.authorization_enabled,
        unsigned_codes=codes_of("authenticationWhitelist", config.authentication_whitelist),
        free_codes=codes_of("authorizationWhitelist", config.authorization_whitelist),
    )
    return AccessControl(Gate(accounts, rules, audit), audit, accounts)


def create_configured_users(config: AuthConfig, accounts: Accounts) -> None:
    """Create the configured users that do not exist.

    Raises:
        ConfigError: A name or password is invalid, or the file cannot be written.
    """
    inner = inner_client(config)
    users = {
        "initAuthenticationUser": first_user(config),
        "innerClientAuthenticationCredentials": None
        if inner is None
        else User(inner.access_key, inner.secret, UserType.SUPER),
    }
    for key, user in users.items():
        if user is None or accounts.user(user.name) is not None:
            continue
        try:
            accounts.create_user(user)
        except (AccountRefused, OSError) as error:
            raise ConfigError(key, "***", f"the user cannot be created: {error}") from error
        log.info("%s: user %s was created", key, user.name)
