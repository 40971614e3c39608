"""Configuration of each master, with the source of each value."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Unsupported
from duemq.http.broker_states import UnknownPart, of_masters, unknown_of, values_of
from duemq.http.endpoints import Call, Endpoint, JsonObject
from duemq.http.sessions import AccountSession
from duemq.net.view_names import CONFIGURATION_VIEW
from duemq_common.masking import masked


class KeysQuery(msgspec.Struct, kw_only=True):
    """Selection of configuration keys.

    Attributes:
        prefix: Beginning of the keys; upper and lower case are the same.
        changed: Whether only keys are listed that a file, the environment or a command sets.
    """

    prefix: Annotated[str, Meta(max_length=255)] = ""
    changed: bool = False

    def selects(self, key: JsonObject) -> bool:
        """Return whether a key is listed."""
        is_set = key["source"] != ""
        return key["key"].lower().startswith(self.prefix.lower()) and (is_set or not self.changed)


class KeysOfBroker(msgspec.Struct):
    """Keys of one broker, as it describes them: value, default and source; passwords are masked.

    Apache's brokers report values only; the source is null.
    """

    broker: str
    keys: list[JsonObject]


class Configurations(msgspec.Struct):
    """Keys of all masters.

    Attributes:
        unknown: Brokers whose keys are missing.
    """

    brokers: list[KeysOfBroker]
    unknown: list[UnknownPart]


async def show_configuration(call: Call) -> Configurations:
    """Return the configuration of each master."""
    query: KeysQuery = call.query or KeysQuery()
    session = call.session

    async def part(member: BrokerMember) -> list[JsonObject]:
        return [key for key in await keys_of(session, member) if query.selects(key)]

    states = await of_masters(session, part)
    values_of(states)
    rows = [KeysOfBroker(one.member.name, one.value) for one in states if one.error is None]
    return Configurations(rows, unknown_of(states))


async def keys_of(session: AccountSession, member: BrokerMember) -> list[JsonObject]:
    """Return the keys of a broker; an Apache broker reports their values only."""
    try:
        keys: list[JsonObject] = (await session.admin.view(member.address, CONFIGURATION_VIEW))[
            "keys"
        ]
    except Unsupported:
        values = await session.admin.broker_config(member.address)
        return [
            {"key": key, "value": masked(key, value), "source": None}
            for key, value in sorted(values.items())
        ]
    return keys


ENDPOINTS: Final = (
    Endpoint(
        path="/configuration",
        handler=show_configuration,
        summary="Show the configuration of each master, with the source of each value.",
        tag="operations",
        query=KeysQuery,
        result=Configurations,
    ),
)
