"""Property filter: evaluation of an expression over the records of consume queue units.

    units --kernel--> TRUE, FALSE, or UNDECIDED --closure--> TRUE or FALSE

The steps of one pull are bounded; the consumer's next pull continues after the evaluated units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from duemq.filters import Expression
from duemq.filters.kernels.match import match_records
from duemq.filters.layout import FALSE, FOREIGN, TRUE, UNDECIDED
from duemq.filters.program import Program
from duemq_common.errors import RecordUnreadable
from message_store.kernels.bytes import Bytes
from message_store.layout import Row, Rows
from message_store.queues.apache_names import LIGHT_QUEUES

if TYPE_CHECKING:
    from message_store.store import MessageStore

UNITS_MIN: Final = 32
UNITS_MAX: Final = 16_384
STEPS_MAX: Final = 4_000_000  # kernel steps per pull
CLOSURE_UNITS_MAX: Final = 800
CLOSURE_STEPS_MAX: Final = 8_000_000  # characters of expressions, times bytes of properties
PROPERTY_BYTES: Final = 256  # assumed size of a message's properties
GROWTH: Final = 4  # factor of the next step while no unit matches


def units_evaluated(expression: Expression, *, compiled: bool) -> int:
    """Return the maximum number of units that one pull evaluates."""
    program = expression.program if compiled else None
    if program is None:
        return _closure_units(expression)
    return max(UNITS_MIN, min(UNITS_MAX, STEPS_MAX // program.cost))


def _closure_units(expression: Expression) -> int:
    units = CLOSURE_STEPS_MAX // (len(expression.text) * PROPERTY_BYTES)
    return max(UNITS_MIN, min(CLOSURE_UNITS_MAX, units))


def _next_step(step: int, done: int, match_count: int, count_max: int) -> int:
    """Return the number of units to evaluate next, estimated from the ratio of matches so far."""
    if match_count == 0:
        return step * GROWTH
    return max(UNITS_MIN, (count_max - match_count) * done // match_count)


class RecordFilter:
    """Evaluator of an expression over records of one queue, for one pull.

    Args:
        position: Topic, queue id, queue offset of the first unit.
        compiled: Whether the kernel is compiled; otherwise the closure evaluates every record.
    """

    def __init__(
        self,
        store: MessageStore,
        position: tuple[str, int, int],
        expression: Expression,
        *,
        compiled: bool,
    ) -> None:
        self._store, self._expression = store, expression
        topic, queue_id, offset = position
        checked = 0 if topic.startswith(LIGHT_QUEUES) else 1
        self._position = (np.frombuffer(topic.encode(), np.uint8), queue_id, offset, checked)
        self._program = expression.program if compiled else None
        self._closure_steps = 0

    def passing(self, units: Rows, count_max: int) -> npt.NDArray[np.bool_]:
        """Return which of the leading units have a record that matches the filter.

        An unreadable record counts as a match, so that `gather` reports the cause.

        Args:
            units: (n,) layout.UNIT, n >= 1.
            count_max: Number of matches after which evaluation stops.

        Returns:
            (m,) bool, 1 <= m <= n, for the first m units.
        """
        passing = np.zeros(units.size, np.bool_)
        done, match_count, step = 0, 0, max(count_max, UNITS_MIN)
        while done < units.size and match_count < count_max:
            block = units[done : done + step]
            results = self._results(block)
            decided = self._decide(block, results)
            passing[done : done + decided] = results[:decided] == TRUE
            match_count += int(np.count_nonzero(passing[done : done + decided]))
            done += decided
            if decided < block.size:
                break
            step = _next_step(step, done, match_count, count_max)
        return passing[:done]

    def _results(self, units: Rows) -> npt.NDArray[np.uint8]:
        """Return the (n,) results of the kernel; if it is not compiled, all are UNDECIDED."""
        program = self._program
        if program is None:
            return np.full(units.size, UNDECIDED, np.uint8)
        results = np.full(units.size, FOREIGN, np.uint8)
        first = int(units["index"][0])

        def visit(data: Bytes, part: Rows, base: int) -> int:
            position = int(part["index"][0]) - first
            out = results[position : position + part.size]
            return self._match(program, data, part, base, out)

        self._store.visit_records(units, visit)
        return results

    def _match(self, program: Program, data: Bytes, units: Rows, base: int, out: Bytes) -> int:
        return int(
            match_records(
                data,
                units,
                base,
                self._position,
                program.names,
                program.arrays,
                program.scratch,
                out,
            )
        )

    def _decide(self, units: Rows, results: npt.NDArray[np.uint8]) -> int:
        """Replace UNDECIDED and FOREIGN by TRUE or FALSE; return the number of decided units.

        After CLOSURE_STEPS_MAX steps, the remaining units stay undecided.
        """
        for index in np.flatnonzero((results == UNDECIDED) | (results == FOREIGN)).tolist():
            if self._closure_steps > CLOSURE_STEPS_MAX:
                return int(index)
            results[index] = self._passes(units[index])
        return units.size

    def _passes(self, unit: Row) -> int:
        """Return the result of the closure for one unit: TRUE or FALSE."""
        try:
            record = self._store.read_record(int(unit["phys_offset"]))
        except RecordUnreadable:
            return TRUE
        size = len(record.property_text) + PROPERTY_BYTES
        self._closure_steps += size * len(self._expression.text)
        topic, queue_id, offset, checked = self._position
        position = (topic.tobytes(), queue_id, offset + int(unit["index"]))
        if checked and position != (record.topic.encode(), record.queue_id, record.queue_offset):
            return TRUE  # `gather` repairs the unit or reports it
        return TRUE if self._expression.matches(record.properties) else FALSE
