"""Accesses that a request needs: an account must have permission for each of them.

Some checks are DueMQ's: Apache's broker opens many codes to every authenticated user
(`RequestRow.always`), and for a retry topic checks only the group in the request, not the group
that owns the topic. The rows of all codes are in `request_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duemq.auth.accesses import ACCESSES_MAX, Access, Fields, TooManyNames
from duemq.auth.request_table import row_of


def allow(access: Access) -> None:
    """Allow an access: the default of `accesses`."""


def accesses(
    code: int,
    fields: Fields,
    body: bytes,
    cluster: str,
    check: Callable[[Access], None] = allow,
) -> list[Access]:
    """Return the accesses that a request needs; empty: every authenticated account is permitted.

    Args:
        code: Request code.
        fields: Header fields as text.
        body: Body of the request, parsed for codes with groups and topics in it.
        cluster: Name of the broker's cluster.
        check: Called with each access when it is found; by raising, it ends the search, which may
            take long.

    Raises:
        TooManyNames: There are too many resources.
        ValueError: The body is malformed.
    """
    row = row_of(code)
    if row.permission is None or not (fields or row.always):
        return []
    return distinct_accesses(row.permission(fields, body, cluster), check)


def distinct_accesses(
    needed: Iterator[Access], check: Callable[[Access], None] = allow
) -> list[Access]:
    """Return the distinct accesses, each after its check.

    Raises:
        TooManyNames: There are more than `ACCESSES_MAX`.
    """
    checked: dict[Access, None] = {}
    for access in needed:
        if access in checked:
            continue
        checked[access] = None
        if len(checked) > ACCESSES_MAX:
            raise TooManyNames(f"the request has more than {ACCESSES_MAX} topics and groups")
        check(access)
    return list(checked)
