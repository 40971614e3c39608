"""Admission of requests: their account, their source, their rate.

With accounts, each request has the credentials of one (HTTP Basic), or a token that stands for
them. They sign the requests to brokers; the brokers check permissions. Without accounts, brokers
permit everything to this machine, so the HTTP server accepts requests from `administerFrom` only,
not through a proxy, and not from pages of other web sites (by `Origin`, by `Host` after DNS
rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from duemq.auth.signature import Credentials
from duemq.http.problems import Problem
from duemq.http.tokens import Tokens, bearer_of
from duemq.net.allowed_networks import Sources

CALLERS_MAX: Final = 4_096  # callers whose rate is counted
HOSTS_MAX: Final = 64
FAILURES_MAX: Final = 10  # failed logins of one address in a minute
FAILURE_WINDOW_S: Final = 60.0
ACCEPTED_S: Final = 60.0  # time after which brokers check an account again before its requests
CHALLENGES: Final = 'Basic realm="DueMQ", charset="UTF-8", Bearer realm="DueMQ"'
FORWARDED: Final = (
    "forwarded",
    "via",
    "x-real-ip",
    *(f"x-forwarded-{part}" for part in ("for", "host", "port", "proto")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Rules of admission.

    Attributes:
        secret: Returns the secret of an account; None: there is no such account.
        has_accounts: Whether brokers check accounts.
        sources: Networks of requests without accounts.
        rate_max: Requests per second of one caller; 0: no limit.
        is_read_only: Whether each login of the console may only view.
    """

    has_accounts: bool
    sources: Sources
    secret: Callable[[str], str | None] | None = None
    rate_max: int = 0
    is_read_only: bool = False


@dataclass(slots=True)
class _Bucket:
    """Token bucket that holds the requests of one second."""

    tokens: float
    since_s: float


class Admission:
    """Admission of requests.

    Args:
        now_s: Returns a monotonic time in seconds.
    Attributes:
        tokens: Tokens of accounts.
    """

    def __init__(self, rules: AdmissionRules, now_s: Callable[[], float]) -> None:
        self._rules, self._now_s = rules, now_s
        self.tokens = Tokens(now_s)
        self._is_allowed = lru_cache(CALLERS_MAX)(rules.sources.allows)
        self._buckets: dict[str, _Bucket] = {}
        self._failures: dict[str, _Bucket] = {}
        self._accepted: dict[Credentials, float] = {}

    def admit(self, headers: Mapping[str, str], address: str) -> Credentials | None:
        """Return the account of a request from an IP address.

        Raises:
            Problem: 401, 403 or 429.
        """
        token = bearer_of(headers)
        credentials = self._account_of(token) if token else credentials_of(headers)
        if self._rules.has_accounts:
            if not token:
                self.check_account(credentials, address)
        else:
            self._check_source(headers, address)
        if self._rules.rate_max:
            name = credentials.access_key if credentials else address
            self._take(self._buckets, name, self._rules.rate_max, self._rules.rate_max)
        return credentials

    @property
    def has_accounts(self) -> bool:
        """Whether requests need an account."""
        return self._rules.has_accounts

    @property
    def is_read_only(self) -> bool:
        """Whether each login of the console may only view."""
        return self._rules.is_read_only

    def is_valid(self, credentials: Credentials) -> bool:
        """Return whether an account still exists with this secret, as far as it is known here."""
        secret = self._rules.secret
        return secret is None or secret(credentials.access_key) == credentials.secret

    def is_accepted(self, credentials: Credentials | None) -> bool:
        """Return whether the secret of an account was checked, here or by a broker."""
        if credentials is None or not self.has_accounts or self._rules.secret is not None:
            return True
        return self._accepted.get(credentials, 0.0) > self._now_s()

    def accept(self, credentials: Credentials) -> None:
        """Note that a broker has accepted the secret of an account."""
        self._accepted.pop(credentials, None)
        if len(self._accepted) >= CALLERS_MAX:
            self._accepted.pop(next(iter(self._accepted)))
        self._accepted[credentials] = self._now_s() + ACCEPTED_S

    def _account_of(self, token: str) -> Credentials:
        """Return the account of a token.

        Raises:
            Problem: 401: The token has ended, or its account has changed.
        """
        credentials = self.tokens.find(token)
        if credentials is None or not self.is_valid(credentials):
            self.tokens.revoke(token)
            raise unauthorized("the token has ended: get another one with POST /api/v1/tokens")
        return credentials

    def check_account(self, credentials: Credentials | None, address: str) -> None:
        """Check the secret of an account; failures of one address are limited.

        Raises:
            Problem: 401 or 429.
        """
        if credentials is None:
            raise unauthorized("give the access key and the secret of an account (HTTP Basic)")
        if address in self._failures:
            self.count_failure(address, 0)  # an account that succeeds uses up none
        secret = self._rules.secret
        if secret is None:  # the brokers check the signature
            return
        expected = secret(credentials.access_key)
        given = credentials.secret.encode("utf-8", "replace")
        if expected is None or not hmac.compare_digest(expected.encode(), given):
            self.count_failure(address)
            raise unauthorized("the account does not exist, is disabled, or has another secret")

    def count_failure(self, address: str, count: int = 1) -> None:
        """Count a failed login of an address.

        Raises:
            Problem: 429: There were too many.
        """
        per_s = FAILURES_MAX / FAILURE_WINDOW_S
        self._take(self._failures, address, FAILURES_MAX, per_s, count)

    def _check_source(self, headers: Mapping[str, str], address: str) -> None:
        key = self._rules.sources.key
        if not self._is_allowed(address):
            reason = f"there are no accounts, and {key} does not name {address}"
        elif any(name in headers for name in FORWARDED):
            reason = "there are no accounts, and the request came through a proxy"
        elif _is_cross_site(headers):
            reason = "the request comes from a page of another site"
        elif not is_address(headers.get("host", "")):
            reason = "there are no accounts, and the host is neither localhost nor an IP address"
        else:
            return
        raise Problem(403, "source", "The source of the request is not allowed", reason)

    def _take(
        self, buckets: dict[str, _Bucket], name: str, size: int, per_s: float, count: int = 1
    ) -> None:
        """Take tokens of a caller, one or none; raise 429 if there is none."""
        now_s = self._now_s()
        bucket = buckets.get(name)
        if bucket is None:
            if len(buckets) >= CALLERS_MAX:
                buckets.pop(next(iter(buckets)))
            bucket = buckets[name] = _Bucket(size, now_s)
        bucket.tokens = min(size, bucket.tokens + (now_s - bucket.since_s) * per_s)
        bucket.since_s = now_s
        if bucket.tokens < 1:
            wait_s = max(1, round((1 - bucket.tokens) / per_s))
            headers = {"Retry-After": str(wait_s)}
            title = "There are too many requests"
            raise Problem(429, "rate", title, f"repeat it after {wait_s} s", headers=headers)
        bucket.tokens -= count


def _is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sends a request for a page of another site."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    host = headers.get("host", "")
    return headers.get("origin", f"//{host}").partition("//")[2] != host


def credentials_of(headers: Mapping[str, str]) -> Credentials | None:
    """Return the account in the header `Authorization`; None if there is none.

    Raises:
        Problem: The header is malformed, or has another scheme than Basic.
    """
    text = headers.get("authorization")
    if text is None:
        return None
    scheme, _, encoded = text.partition(" ")
    try:
        pair = b64decode(encoded.strip(), validate=True).decode()
    except ValueError:
        pair = ""
    access_key, colon, secret = pair.partition(":")
    if scheme.lower() != "basic" or not colon or not access_key:
        raise unauthorized("the header Authorization is neither HTTP Basic nor a bearer token")
    return Credentials(access_key, secret)


def unauthorized(detail: str) -> Problem:
    """Return the problem of a request without a valid account."""
    headers = {"WWW-Authenticate": CHALLENGES}
    title = "The request needs an account"
    return Problem(401, "unauthorized", title, detail, headers=headers)


@lru_cache(HOSTS_MAX)
def is_address(host: str) -> bool:
    """Return whether a `Host` is localhost or an IP address, which DNS cannot redirect."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
