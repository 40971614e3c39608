"""SQL92 filters over message properties, with the semantics of Apache's filter module."""

from duemq.filters.expression import BYTES_PER_CHAR, SQL92, Compiler, Expression
from duemq.filters.nodes import FilterError

__all__ = ["BYTES_PER_CHAR", "SQL92", "Compiler", "Expression", "FilterError"]
