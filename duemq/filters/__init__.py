"""SQL92 filters over message properties, with the semantics of Apache's filter module."""

from duemq.filters.expression import SQL92, Compiler, Expression
from duemq.filters.nodes import FilterError

__all__ = ["SQL92", "Compiler", "Expression", "FilterError"]
