"""Lists of names in the bodies of requests."""

from __future__ import annotations

from typing import Final

from duemq.net import wire_json
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

NAMES_MAX: Final = 4_096


def names_in(request: Request, member: str) -> list[str]:
    """Return the distinct names in a member of the body, in their order.

    Raises:
        RequestError: The body is malformed, a name is blank, or there are none or too many.
    """
    try:
        names = wire_json.parse_object(request.body).get(member)
    except ValueError as error:
        text = f"the body is not JSON: {error}"
        raise RequestError(ResponseCode.INVALID_PARAMETER, text) from error
    if not isinstance(names, list) or not 1 <= len(names) <= NAMES_MAX:
        text = f"{member} must be a list of 1 to {NAMES_MAX} names"
        raise RequestError(ResponseCode.INVALID_PARAMETER, text)
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{member} has a blank name")
    return list(dict.fromkeys(names))
