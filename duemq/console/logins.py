"""Logins: sessions of browsers with an account and its role, in memory.

A cookie has a random name of the session; forms have its second random text (CSRF). The account is
checked again at each request, so that a disabled account is logged out at once.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from duemq.auth.signature import Credentials
from duemq.client.errors import ClientError, Refused
from duemq.http.sessions import AccountSession
from duemq.net.codes import ResponseCode

LOGINS_MAX: Final = 1_000
IDLE_S: Final = 30 * 60.0
AGE_MAX_S: Final = 12 * 3600.0
PROBE_TOPIC: Final = "DUEMQ_CONSOLE"  # no message has it
PROBE_ID: Final = "0" * 32


class LoginRole(IntEnum):
    """What a login may do; the brokers check each request again."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(slots=True)
class Login:
    """Login of an account; without accounts, of everyone, who may only view.

    Attributes:
        csrf: Text that each form of the login sends.
        since_s, used_s: Monotonic times.
    """

    credentials: Credentials | None
    role: LoginRole
    csrf: str = ""
    since_s: float = 0.0
    used_s: float = 0.0

    @property
    def name(self) -> str:
        """Access key; empty without accounts."""
        return self.credentials.access_key if self.credentials else ""

    def accepts(self, csrf: str) -> bool:
        """Return whether a form was made for this login."""
        return bool(self.csrf) and hmac.compare_digest(self.csrf.encode(), csrf.encode())


class Logins:
    """Logins by the value of the cookie.

    Args:
        now_s: Returns a monotonic time in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def start(self, credentials: Credentials, role: LoginRole) -> str:
        """Start a login and return the value of its cookie."""
        if len(self._logins) >= LOGINS_MAX:
            self._logins.popitem(last=False)
        now_s, name = self._now_s(), secrets.token_urlsafe(32)
        csrf = secrets.token_urlsafe(32)
        self._logins[name] = Login(credentials, role, csrf, now_s, now_s)
        return name

    def find(self, name: str, *, touch: bool = True) -> Login | None:
        """Return a login that has not expired; `touch` counts as use."""
        login, now_s = self._logins.get(name), self._now_s()
        if login is None:
            return None
        if now_s - login.used_s > IDLE_S or now_s - login.since_s > AGE_MAX_S:
            del self._logins[name]
            return None
        if touch:
            login.used_s = now_s
            self._logins.move_to_end(name)
        return login

    def end(self, name: str) -> None:
        """End a login."""
        self._logins.pop(name, None)


async def role_of(session: AccountSession) -> LoginRole:
    """Return the role of an account: brokers are asked for decisions without effect.

    Raises:
        ClientError: The account may not view brokers, or no broker responds.
    """
    [(_, address), *_] = await session.masters()
    await session.admin.view(address, "")
    if await _may_decide(session, ids=[PROBE_ID]):
        return LoginRole.ADMIN
    may_decide = await _may_decide(session, ids=[PROBE_ID], topic=PROBE_TOPIC)
    return LoginRole.OPERATOR if may_decide else LoginRole.VIEWER


async def _may_decide(session: AccountSession, **selection: object) -> bool:
    try:
        await session.decisions.cancel(dry_run=True, **selection)
    except Refused as error:
        return error.code != ResponseCode.NO_PERMISSION
    except ClientError:  # Apache's brokers have no decisions
        return False
    return True
