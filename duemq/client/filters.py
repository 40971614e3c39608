"""Filters of subscriptions: tags, or an SQL92 expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from duemq_common.text import java_hash

ALL: Final = "*"
TAG, SQL92 = "TAG", "SQL92"


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of the messages of one topic.

    Args:
        expression: `*` for all, tags separated by `||`, or an SQL92 expression.
        kind: `TAG` or `SQL92`.
    Attributes:
        tags: Tags of the expression; empty: all messages.
    """

    expression: str = ALL
    kind: str = TAG

    @property
    def tags(self) -> frozenset[str]:
        """Tags of the expression; empty: all messages pass."""
        if self.kind != TAG or self.expression.strip() in ("", ALL):
            return frozenset()
        return frozenset(tag.strip() for tag in self.expression.split("||") if tag.strip())

    def subscription(self, topic: str, version: int) -> dict[str, Any]:
        """Return the subscription as a heartbeat has it. SubscriptionData"""
        tags = sorted(self.tags)
        return {
            "topic": topic,
            "subString": self.expression or ALL,
            "expressionType": self.kind,
            "tagsSet": tags,
            "codeSet": [java_hash(tag) for tag in tags],
            "subVersion": version,
            "classFilterMode": False,
        }


def sql(expression: str) -> Filter:
    """Return a filter by properties, for example `sql("region = 'EU' AND amount > 10")`."""
    return Filter(expression, SQL92)
