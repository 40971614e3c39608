"""Put hook: a message with `DUEMQ_SCHEDULE_CRON` creates a schedule; no client sends occurrences.

    DUEMQ_SCHEDULE_NAME, ..._CRON     the row becomes the record of the schedule in the journal
    DUEMQ_SCHEDULE, ..._TIME, ...     set by the broker only: the message is refused

Topic, body, tag, keys and other properties of the message are those of each occurrence. The message
itself is not delivered. The response is that of the record, so it waits for disk and replicas like
any other. If the schedule exists with the same definition, the row becomes a copy of its newest
record: a client repeats a send without effect. Another definition of the name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from delayed_delivery.kinds import SCHEDULE_KIND
from delayed_delivery.names import OCCURRENCE_NAMES
from delayed_delivery.schedule_rows import schedule_rows, topic_of
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import SCHEDULES_TOPIC
from message_store.layout import SYS_BORN_IPV6, SYS_STORE_IPV6
from message_store.log.batch import SCHEDULE_PREFIX
from recurring_schedules import journal
from recurring_schedules.definition import (
    COMPRESSION_MASK,
    Definition,
    InvalidDefinition,
    split_expressions,
)
from recurring_schedules.journal import ScheduleRecord
from recurring_schedules.names import JOURNAL_QUEUE, REQUEST_NAMES, UNIQUE_KEY
from recurring_schedules.occurrences import StepWork
from recurring_schedules.requests import ScheduleRequests, already_exists

if TYPE_CHECKING:
    from message_store.log.batch import PutBatch
    from message_store.queues.topic_table import TopicTable

SENDERS_FIELDS: Final = {"TAGS": "tags", "KEYS": "keys"}
_OF_REMOTING: Final = {UNIQUE_KEY, "WAIT", "INSTANCE_ID", "MSG_REGION", "CLUSTER", "TRACE_ON"}
_OF_V5: Final = {"PGROUP", "__BORNHOST", "BORN_TIMESTAMP", "TRACE_CONTEXT"}
SENDERS_PROPERTIES: Final = frozenset(_OF_REMOTING | _OF_V5)
"""Properties that clients set in the message that creates a schedule, not of its occurrences."""
TURN_WORK: Final = 20_000
"""Work of the searches of one batch, about 1 us a unit (`occurrences.WORK_MAX`)."""
BUSY: Final = "too many schedules are created at the same time: send it again"
TOO_LONG: Final = (
    "the search for its first time takes too long for a send: create it with "
    "duemq schedule create, or the HTTP API"
)
KEPT_PROPERTIES: Final[tuple[str, ...]] = (UNIQUE_KEY, "WAIT")


class ScheduleHook:
    """Put hook of messages with a property of schedules.

    Args:
        requests: Returns the handlers of changes; raises RequestError while no schedules run.
    """

    kinds = SCHEDULE_KIND

    def __init__(self, topics: TopicTable, requests: Callable[[], ScheduleRequests]) -> None:
        self._topics, self._requests = topics, requests

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        """Replace rows that create schedules by records of the journal; refuse invalid ones."""
        created: dict[str, ScheduleRecord] = {}
        turn = StepWork()
        for index in schedule_rows(batch, self._topics):
            try:
                definition = self._definition(batch, index)
                record = created.get(definition.name)
                if record is None:
                    record = self._record_of(definition, now_ms, turn)
                elif record.definition != definition:
                    raise InvalidDefinition(already_exists(definition.name))
            except InvalidDefinition as error:
                batch.refuse(
                    index, ResponseCode.MESSAGE_ILLEGAL, f"the schedule is refused: {error}"
                )
            except RequestError as error:
                batch.refuse(index, error.code, f"the schedule is refused: {error.remark}")
            else:
                created[definition.name] = record
                self._replace(batch, index, record)

    def _record_of(self, definition: Definition, now_ms: int, turn: StepWork) -> ScheduleRecord:
        """Return the record of a schedule.

        Args:
            turn: Work of the records before it in the batch; that of this one is added.
        Raises:
            InvalidDefinition: The search for its first time would hold the event loop.
            RequestError: SYSTEM_BUSY: the searches of the records before it held the event loop.
        """
        if turn.units >= TURN_WORK:
            raise RequestError(ResponseCode.SYSTEM_BUSY, BUSY)
        before, step = turn.units, StepWork()
        steps = self._requests().record_of(definition, now_ms, step)
        try:
            while turn.units - before < TURN_WORK:
                next(steps)
                turn.units += step.units
        except StopIteration as end:
            turn.units += step.units
            record: ScheduleRecord = end.value
            return record
        raise InvalidDefinition(TOO_LONG)

    def _definition(self, batch: PutBatch, index: int) -> Definition:
        row, properties = batch.rows[index], batch.properties(index)
        if fault := forged(properties):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, fault)
        if batch.group_end(index) != index + 1:
            raise InvalidDefinition("send it in a message of its own, not in a batch")
        definition: Definition = replace(
            definition_of(properties, self._topics.name(topic_of(row))),
            body=batch.body(index),
            flag=int(row["flag"]),
            compression=int(row["sys_flag"]) & COMPRESSION_MASK,
        )
        return definition

    def _replace(self, batch: PutBatch, index: int, record: ScheduleRecord) -> None:
        row, properties = batch.rows[index], batch.properties(index)
        body = journal.encode(record)
        row["topic_index"], row["queue_id"] = self._topics.add(SCHEDULES_TOPIC), JOURNAL_QUEUE
        row["body_pos"], row["body_len"] = batch.stage(body), len(body)
        row["flag"] = row["reconsume_times"] = 0
        row["sys_flag"] &= SYS_BORN_IPV6 | SYS_STORE_IPV6
        kept = {name: properties[name] for name in KEPT_PROPERTIES if name in properties}
        batch.set_properties(index, kept)


def forged(properties: Mapping[str, str]) -> str:
    """Return why a message with a property of occurrences is refused; empty: it has none."""
    name = next((name for name in properties if name in OCCURRENCE_NAMES), "")
    return f"the property {name} is set by the broker: remove it" if name else ""


def definition_of(properties: Mapping[str, str], topic: str) -> Definition:
    """Return the definition in the properties of a message, without its body.

    Raises:
        InvalidDefinition: A property of schedules is unknown, malformed or missing.
    """
    own: dict[str, str] = {}
    values: dict[str, object] = {"topic": topic, "properties": own}
    for name, text in properties.items():
        if name.startswith(SCHEDULE_PREFIX):
            if name not in REQUEST_NAMES:
                raise InvalidDefinition(f"there is no property {name[:60]}")
            values[REQUEST_NAMES[name]] = text
        elif name in SENDERS_FIELDS:
            values[SENDERS_FIELDS[name]] = text
        elif name not in SENDERS_PROPERTIES:
            own[name] = text
    if "name" not in values:
        raise InvalidDefinition("the property DUEMQ_SCHEDULE_NAME is missing")
    if "exclude" in values:
        values["exclude"] = split_expressions(str(values["exclude"]))
    try:
        return msgspec.convert(values, Definition, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidDefinition(f"a property is malformed: {error}") from None
