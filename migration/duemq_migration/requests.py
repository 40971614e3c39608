"""Migration request (9015): JSON in and out.

    {"action": "plan", "levels": [3, 5], "operator": "anna"}          -> the plan, saved
    {"action": "start", "plan_id": ..., "levels": [3], "operator": ..., "rules": {"T": 5000}}
    {"action": "pause" | "resume" | "rollback" | "verify", "levels": [3], "operator": ...,
     "cause": ...}
    {"action": "status"}

Without `levels` a command applies to all levels whose state allows it. `dry_run` only reports the
effect. A refusal has code 13 for a malformed body, else 1; its remark has the remedy. A replica
refuses every command; the response field `masterAddress` names its master.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from delayed_delivery.names import MASTER_FIELD
from delayed_delivery.plugin import referral_text
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

"""Request code, above those of Apache and next to those of cancel, move and compaction."""
ACTIONS: Final = ("plan", "start", "pause", "resume", "rollback", "verify", "status")
TEXT_CHARS_MAX: Final = 200
LEVELS_MAX: Final = 1_000
RULES_MAX: Final = 1_000
DELAY_MS_MAX: Final = 10 * 366 * 86_400_000


class MigrationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a request.

    Attributes:
        plan: Plan as a JSON value, instead of `plan_id`.
        rules: Delays of single topics in ms, which replace that of the level.
    """

    action: str
    levels: list[int] = msgspec.field(default_factory=list)
    operator: str = ""
    cause: str = ""
    plan_id: str = ""
    plan: msgspec.Raw = msgspec.Raw(b"null")
    rules: dict[str, int] = msgspec.field(default_factory=dict)
    dry_run: bool = False


class Done(Struct, frozen=True, kw_only=True):
    """Result of a command.

    Attributes:
        levels: Levels to which the command was applied.
        remarks: Remarks about single levels.
    """

    action: str
    dry_run: bool = False
    migration: str = ""
    levels: list[int] = field(default_factory=list)
    remarks: dict[int, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the body of the response."""
        value = {
            "action": self.action,
            "dry_run": self.dry_run,
            "migration": self.migration,
            "levels": self.levels,
            "remarks": {str(n): text for n, text in self.remarks.items()},
            **self.more,
        }
        return json.dumps(value).encode()


def replica_text(master: str) -> str:
    """Return the reason why a replica refuses the request.

    Args:
        master: `host:port` of its master, empty if it is unknown.
    """
    return referral_text(master, "runs the migrations")


def referral(master: str) -> Response:
    """Return the response of a replica, which refers to its master; see `replica_text`."""
    return Response(ResponseCode.SYSTEM_ERROR, replica_text(master), {MASTER_FIELD: master})


def command_of(request: Request) -> MigrationRequest:
    """Return the command of a request.

    Raises:
        RequestError: The body is malformed.
    """
    try:
        command = msgspec.json.decode(bytes(request.body), type=MigrationRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the body is not the JSON of a migration request: {error}",
        ) from error
    reason = _fault(command)
    if reason:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
    return command


def _fault(command: MigrationRequest) -> str:
    if command.action not in ACTIONS:
        return f"action {command.action!r}: must be one of {', '.join(ACTIONS)}"
    if max(map(len, (command.operator, command.cause, command.plan_id))) > TEXT_CHARS_MAX:
        return f"a text is longer than {TEXT_CHARS_MAX} characters"
    if len(command.levels) > LEVELS_MAX or len(command.rules) > RULES_MAX:
        return f"more than {LEVELS_MAX} levels or {RULES_MAX} rules"
    for topic, delay_ms in command.rules.items():
        if not topic or not 0 <= delay_ms <= DELAY_MS_MAX:
            return f"rule {topic!r}: the delay {delay_ms} ms must be 0 to {DELAY_MS_MAX} ms"
    return ""
