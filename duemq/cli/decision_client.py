"""Client for decisions about pending messages (cancel, move, fire), and their commands.

    async with DecisionClient("127.0.0.1:9876") as client:
        for result in await client.cancel(ids=["7F00..."]):
            print(result.name, result.verdict)

The request goes to every broker, since each may have the message. The result with the highest
priority (`RANKS`) counts.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from duemq.auth.signature import Credentials
from duemq.cli.client import Cluster, bytes_of, not_a_broker
from duemq.cli.options import Target
from duemq.messages.decide import ACTIONS, NAMES_MAX, TIME_MS_MAX, DecisionRequest, DecisionResponse
from duemq.messages.decision_results import DecisionResult
from duemq_common.errors import UsageError

CALL_TIMEOUT_S = 60.0
CODES: Final = {action: code for code, action in ACTIONS.items()}
RANKS: Final = ("unknown", "already delivered", "done", "refused")  # in ascending priority
COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "remark")
MOVE_COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "due before (UTC)", "remark")
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSelection:
    """Selection of pending messages.

    Attributes:
        ids: Unique keys or offset message ids.
        keys: Values of KEYS.
        handles: Recall handles.
        topic: Topic of ids and keys; alone, it selects all pending messages of the topic.
        from_ms, until_ms: Only messages due in [from_ms, until_ms).
    """

    ids: Sequence[str] = ()
    keys: Sequence[str] = ()
    handles: Sequence[str] = ()
    topic: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX

    def requests(self, **more: Any) -> Iterable[DecisionRequest]:
        """Yield requests of at most NAMES_MAX names."""
        left = {"ids": list(self.ids), "keys": list(self.keys), "handles": list(self.handles)}
        first = True
        while first or any(left.values()):
            request = DecisionRequest(
                topic=self.topic, from_ms=self.from_ms, until_ms=self.until_ms, **more
            )
            room, first = NAMES_MAX, False
            for kind, names in left.items():
                setattr(request, kind, names[:room])
                left[kind] = names[room:]
                room -= len(names[:room])
            yield request


class DecisionClient:
    """Client that sends decisions to all brokers of a cluster; an async context manager.

    Args:
        namesrv: `host:port` of name servers, separated by `;`.
        broker: `host:port` of one broker; then only that broker is used.
        tls: Context of TLS connections; None: plaintext.
        credentials: Credentials that sign the requests; None: unsigned.
    """

    def __init__(
        self,
        namesrv: str = "127.0.0.1:9876",
        broker: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._cluster = Cluster(namesrv, broker, tls=tls, credentials=credentials)

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._cluster.__aexit__(*exc)

    async def cancel(self, *, dry_run: bool = False, **selection: Any) -> list[DecisionResult]:
        """Cancel messages; `selection` are the attributes of `MessageSelection`.

        Raises:
            RequestError: A broker refused the request as a whole.
            ConnectionError: A broker does not respond.
        """
        return await self.decide("cancel", MessageSelection(**selection), dry_run=dry_run)

    async def move(
        self,
        *,
        deliver_ms: int | None = None,
        delay_ms: int | None = None,
        dry_run: bool = False,
        **selection: Any,
    ) -> list[DecisionResult]:
        """Reschedule messages to an absolute time or to a delay from now."""
        return await self.decide(
            "move",
            MessageSelection(**selection),
            dry_run=dry_run,
            deliver_ms=deliver_ms,
            delay_ms=delay_ms,
        )

    async def fire(self, *, dry_run: bool = False, **selection: Any) -> list[DecisionResult]:
        """Deliver messages now."""
        return await self.decide("fire", MessageSelection(**selection), dry_run=dry_run)

    async def decide(
        self, action: str, selection: MessageSelection, **more: object
    ) -> list[DecisionResult]:
        """Send the request to every broker; return one result for each name, in order."""
        brokers = await self._cluster.brokers()
        if not brokers:
            raise ConnectionError("the name server has no registered broker")
        results: list[DecisionResult] = []
        for request in selection.requests(**more):
            body = msgspec.json.encode(request)
            responses = [await self._fetch(address, CODES[action], body) for _, address in brokers]
            results += [combined(of_one) for of_one in zip(*responses, strict=True)]
        return results

    async def _fetch(self, address: str, code: int, body: bytes) -> list[DecisionResult]:
        response = await self._cluster.call(
            address,
            code,
            body=body,
            timeout_s=CALL_TIMEOUT_S,
            unsupported=not_a_broker(address),
        )
        return msgspec.json.decode(bytes_of(response), type=DecisionResponse).results


def combined(results: Sequence[DecisionResult]) -> DecisionResult:
    """Return the combined result of several brokers for one name."""
    best = max(results, key=lambda result: RANKS.index(result.verdict))
    due = [result.due_ms for result in results if result.due_ms >= 0]
    former = [result.former_due_ms for result in results if result.former_due_ms >= 0]
    return DecisionResult(
        best.name,
        best.verdict,
        sum(result.messages for result in results),
        min(due, default=-1),
        sum(result.refused for result in results),
        best.remark,
        min(former, default=-1),
    )


# -- commands -------------------------------------------------------------------------------------


def decide_and_show(
    action: str,
    selection: MessageSelection,
    target: Target,
    *,
    dry_run: bool,
    confirmed: bool = True,
    **more: object,
) -> None:
    """Send a decision, print the result for each name, and exit.

    Exit code 0: all done; 1: some were already delivered or are unknown; 4: some were refused.

    Args:
        confirmed: Skip the confirmation for a whole topic.
    """
    from duemq.cli.exits import Exit
    from duemq.cli.output import plural, print_json, print_table

    if not (selection.ids or selection.keys or selection.handles or selection.topic):
        raise UsageError("no messages selected: give --id, --key, --handle or --topic")

    async def run(dry_run: bool) -> list[DecisionResult]:
        tls, credentials = target.tls_context(), target.credentials()
        client_of = DecisionClient(target.namesrv, target.broker, tls=tls, credentials=credentials)
        async with client_of as client:
            return await client.decide(action, selection, dry_run=dry_run, **more)

    if not (confirmed or dry_run or selection.ids or selection.keys or selection.handles):
        _confirm(action, selection.topic, lambda: asyncio.run(run(True)))
    results = asyncio.run(run(dry_run))
    verdicts = {result.verdict for result in results}
    for result in results:
        result.verdict = (
            f"would {action}" if dry_run and result.verdict == "done" else (result.verdict)
        )
    if target.as_json:
        print_json({"dry_run": dry_run, "results": msgspec.to_builtins(results)})
    else:
        count = sum(result.messages for result in results)
        title = f"{action}: {count:,} {plural(count, 'message')}"
        title += ", dry run: nothing was changed" if dry_run else ""
        columns = MOVE_COLUMNS if action == "move" else COLUMNS
        print_table(title, columns, [_row(result, columns) for result in results])
    if "refused" in verdicts:
        raise SystemExit(int(Exit.REFUSED))
    if verdicts - {"done"}:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _confirm(action: str, topic: str, dry_run: Callable[[], list[DecisionResult]]) -> None:
    """Ask for confirmation before an action on all pending messages of a topic.

    Raises:
        UsageError: Standard input is not a terminal.
        SystemExit: The operator declined.
    """
    from duemq.cli.exits import Exit, fail
    from duemq.cli.output import plural

    if not sys.stdin.isatty():
        raise UsageError(
            f"{action} --topic {topic} applies to all pending messages of the topic: add --yes, or "
            "check with --dry-run first"
        )
    count = sum(result.messages for result in dry_run())
    question = f"{action} {count:,} pending {plural(count, 'message')} of topic {topic}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("nothing was changed", Exit.FOUND_FAULT)


def _row(result: DecisionResult, columns: Sequence[str]) -> tuple[object, ...]:
    from duemq.cli.messages import table_time

    name = result.name
    if len(name) > SHOWN_CHARACTERS:
        name = name[: SHOWN_CHARACTERS - 3] + "..."
    former_ms = result.former_due_ms
    cells = {
        "name": name,
        "verdict": result.verdict,
        "#messages": f"{result.messages:,}",
        "due (UTC)": table_time(result.due_ms if result.due_ms >= 0 else None),
        "due before (UTC)": table_time(former_ms if former_ms >= 0 else None),
        "remark": result.remark,
    }
    return tuple(cells[column] for column in columns)
