"""Access tokens: random texts that stand for an account for an hour (bearer credentials, RFC 6750).

    POST /tokens (Basic) --> Tokens: token, credentials, expiry
    Authorization: Bearer --> Tokens --> credentials, which are checked as those of Basic

The tokens are in the memory of one server. A token ends early if it is revoked, or if its account
is disabled, deleted or has another secret.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from duemq.auth.signature import Credentials

LIFETIME_S: Final = 3_600
TOKENS_MAX: Final = 4_096
ACCOUNT_TOKENS_MAX: Final = 16
TOKEN_BYTES: Final = 32
SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Account of a token, and the monotonic time in seconds at which the token ends."""

    credentials: Credentials
    until_s: float


class Tokens:
    """Tokens of one server; an account has at most `ACCOUNT_TOKENS_MAX`, the oldest ends first.

    Args:
        now_s: Returns a monotonic time in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # the first one ends first

    def __len__(self) -> int:
        return len(self._entries)

    def issue(self, credentials: Credentials) -> str:
        """Return a new token of an account."""
        now_s = self._now_s()
        while self._entries and next(iter(self._entries.values())).until_s <= now_s:
            self._entries.popitem(last=False)
        tokens = self._tokens_of(credentials.access_key)
        if len(tokens) >= ACCOUNT_TOKENS_MAX:
            self.revoke(tokens[0])
        elif len(self._entries) >= TOKENS_MAX:
            self._entries.popitem(last=False)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._entries[token] = _Entry(credentials, now_s + LIFETIME_S)
        return token

    def find(self, token: str) -> Credentials | None:
        """Return the account of a token; None: the token has ended."""
        entry = self._entries.get(token)
        return entry.credentials if entry is not None and entry.until_s > self._now_s() else None

    def revoke(self, token: str) -> int:
        """End a token; return the number of ended tokens."""
        return int(self._entries.pop(token, None) is not None)

    def revoke_all(self, access_key: str) -> int:
        """End all tokens of an account; return their number."""
        return sum(map(self.revoke, self._tokens_of(access_key)))

    def _tokens_of(self, access_key: str) -> list[str]:
        return [
            token
            for token, entry in self._entries.items()
            if entry.credentials.access_key == access_key
        ]


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the token in the header `Authorization`; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == SCHEME else ""
