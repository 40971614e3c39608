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
from duemq.client.errors import Refused, Unreachable, Unsupported
from duemq.http.broker_states import of_members, values_of
from duemq.http.sessions import AccountSession
from duemq.net.view_names import RIGHTS_VIEW
from duemq_common.codes import ResponseCode

LOGINS_MAX: Final = 1_000
ACCOUNT_LOGINS_MAX: Final = 16
IDLE_S: Final = 30 * 60.0
AGE_MAX_S: Final = 12 * 3600.0


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
    """Logins by the value of the cookie, least recently used first.

    An account has at most `ACCOUNT_LOGINS_MAX`, so that it cannot end the logins of others.

    Args:
        now_s: Returns a monotonic time in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def start(self, credentials: Credentials, role: LoginRole) -> str:
        """Start a login and return the value of its cookie."""
        own = [name for name, each in self._logins.items() if each.name == credentials.access_key]
        if len(own) >= ACCOUNT_LOGINS_MAX:
            self.end(own[0])
        elif len(self._logins) >= LOGINS_MAX:
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
    """Return the highest role that a broker grants to an account; each checks requests again.

    Raises:
        ClientError: No broker accepts the account, or none responds.
    """
    masters = await session.masters()
    states = await of_members(masters, lambda one: _role_at(session, one.address))
    states.sort(key=lambda state: isinstance(state.error, Unreachable))  # a refusal says more
    role: LoginRole = max(values_of(states))
    return role


async def _role_at(session: AccountSession, address: str) -> LoginRole:
    """Return the role at one broker; Apache's brokers have nothing that the console changes."""
    try:
        rights = await session.admin.view(address, RIGHTS_VIEW)
    except Unsupported:
        await session.admin.runtime_info(address)  # the broker checks the signature
        return LoginRole.VIEWER
    except Refused as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:  # an older broker does not have the view
            raise
        return LoginRole.VIEWER
    if rights["administer"]:
        return LoginRole.ADMIN
    return LoginRole.OPERATOR if rights["decide"] else LoginRole.VIEWER
