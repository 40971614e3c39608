"""Configuration section of access control. Source: AuthConfig of Apache 5.3.3."""

from __future__ import annotations

import json
from dataclasses import dataclass

from duemq.auth.model import User, UserType
from duemq.auth.signature import Credentials
from duemq_common.config import option
from duemq_common.errors import ConfigError

CODE_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Accounts, signatures and permissions."""

    authentication_enabled: bool = option(
        False,
        "authenticationEnabled",
        "Check the signature of every request; a request without an account is refused.",
    )
    authentication_whitelist: str = option(
        "",
        "authenticationWhitelist",
        "Request codes whose signature is not checked, separated by `,`.",
        unit="request codes",
    )
    init_user: str = option(
        "",
        "initAuthenticationUser",
        "First super user, created at startup if it does not exist: "
        '`{"username":"...","password":"..."}`.',
        unit="JSON",
    )
    inner_credentials: str = option(
        "",
        "innerClientAuthenticationCredentials",
        "Account that signs the broker's own requests to name servers; created as a super user "
        'if it does not exist: `{"accessKey":"...","secretKey":"..."}`.',
        unit="JSON",
    )
    authorization_enabled: bool = option(
        False,
        "authorizationEnabled",
        "Check the permissions of the account; needs authenticationEnabled.",
    )
    authorization_whitelist: str = option(
        "",
        "authorizationWhitelist",
        "Request codes that need no permission, separated by `,`.",
        unit="request codes",
    )
    acl_enable: bool = option(
        False,
        "aclEnable",
        "Check every request by the accounts of `conf/plain_acl.yml` (ACL 1.0).",
    )
    home_text: str = option(
        "",
        "rocketmqHome",
        "Directory with `conf/plain_acl.yml` and `conf/acl`; read with aclEnable only.",
        unit="path",
    )
    accounts_file: str = option(
        "",
        "accountsFile",
        "File of users and permissions; empty: `config/duemq.accounts.json` of the store. It "
        "contains secrets, so only its owner may have access.",
        unit="path",
        own=True,
    )

    def __post_init__(self) -> None:
        codes_of("authenticationWhitelist", self.authentication_whitelist)
        codes_of("authorizationWhitelist", self.authorization_whitelist)
        first_user(self)
        inner_client(self)
        if self.authorization_enabled and not self.authentication_enabled:
            reason = (
                "permissions of unverified users protect nothing; set "
                "authenticationEnabled=true as well"
            )
            raise ConfigError("authorizationEnabled", "true", reason)

        if self.acl_enable and self.authentication_enabled:
            reason = "authenticationEnabled is also true; use only one of them"
            raise ConfigError("aclEnable", "true", reason)
        if self.acl_enable and not self.home_text:
            reason = "rocketmqHome is empty; set it to the directory with conf/plain_acl.yml"
            raise ConfigError("aclEnable", "true", reason)

    @property
    def is_on(self) -> bool:
        """Whether requests are checked."""
        return self.authentication_enabled or self.acl_enable


def codes_of(key: str, text: str) -> frozenset[int]:
    """Parse the request codes of a whitelist.

    Raises:
        ConfigError: A word is not a number.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and int(word) < CODE_MAX for word in words):
        raise ConfigError(key, text, "must be request codes such as 105,38, separated by `,`")
    return frozenset(map(int, words))


def first_user(config: AuthConfig) -> User | None:
    """Return the user of `initAuthenticationUser`, or None.

    Raises:
        ConfigError: The value is not JSON with `username` and `password`.
    """
    pair = _pair("initAuthenticationUser", config.init_user, "username", "password")
    return User(*pair, UserType.SUPER) if pair is not None else None


def inner_client(config: AuthConfig) -> Credentials | None:
    """Return the credentials for the broker's requests, or None.

    Raises:
        ConfigError: The value is not JSON with `accessKey` and `secretKey`.
    """
    key = "innerClientAuthenticationCredentials"
    pair = _pair(key, config.inner_credentials, "accessKey", "secretKey")
    return Credentials(*pair) if pair is not None else None


def _pair(key: str, text: str, *names: str) -> tuple[str, str] | None:
    if not text:
        return None
    try:
        value = json.loads(text)
        first, second = (value[name] for name in names)
    except (ValueError, TypeError, KeyError):
        first = second = None
    if not (
        isinstance(first, str) and isinstance(second, str) and first.strip() and second.strip()
    ):
        form = ",".join(f'"{name}":"..."' for name in names)
        raise ConfigError(key, text, f"must be {{{form}}}")
    return first, second
