"""Operation codes of filter programs; each operation is a row, evaluated on a stack."""

from __future__ import annotations

from typing import Final

# Values on the stack.
FALSE: Final = 0
TRUE: Final = 1
UNKNOWN: Final = 2
# Results that end the evaluation.
UNDECIDED: Final = 3  # the closure must evaluate the message
ERROR: Final = 4  # throws in Java: the message does not match
FOREIGN: Final = 5  # the unit does not point to its record

# Columns of an operation.
OPERATION: Final = 0
PROPERTY: Final = 1  # index of the property's name
ARGUMENT: Final = 2
OPERATOR: Final = 3
ABSENT: Final = 4  # value if the message lacks the property
EXTRA: Final = 5
COLUMNS: Final = 6

# Operations, with the meaning of their columns ARGUMENT, OPERATOR, EXTRA in this order.
PUSH: Final = 0  # value
PRESENT: Final = 1  # value if the message has the property
WHOLE: Final = 2  # index of a number, comparison, maximum of its kind
DOUBLE: Final = 3  # index of a number, comparison
TEXT: Final = 4  # index of the text to compare with
MEMBER: Final = 5  # index of the first text, 1 if negated, index after the last text
CONTAINS: Final = 6  # index of the text, 1 if negated
STARTS: Final = 7
ENDS: Final = 8
BOOLEAN: Final = 9  # 1 if the property must be "true"
FAIL: Final = 10
PAIR_EQUAL: Final = 11  # index of the other property's name
PAIR_ORDER: Final = 12  # index of the other property's name, comparison
NOT: Final = 13
JUMP: Final = 14  # index of the next operation, top value for which to jump
MERGE: Final = 15  # decisive value of the junction

# Comparisons.
EQUAL: Final = 0
LESS: Final = 1
AT_MOST: Final = 2
GREATER: Final = 3
AT_LEAST: Final = 4
