"""Subscription of a consumer group to a topic: an expression, and the hashes of its tags.
FilterAPI"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from duemq.filters import Expression
from duemq_common.text import java_hash

ALL = "*"
TAG = "TAG"
TAGS_MAX = 4_096
EXPRESSION_CHARS_MAX = 1 << 17


class ExpressionError(ValueError):
    """Invalid subscription expression."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of one group to one topic.

    Attributes:
        version: Version number chosen by the client; only compared.
        born_ms: Time in ms at which the property filter was registered; 0: tag filter.
        filter: Compiled property filter; None: tag filter.
        is_tag: Whether the expression is a tag filter, as it is for an empty kind.
        matches_all: Whether every message matches.
    """

    topic: str
    expression: str = ALL
    kind: str = TAG
    tags: tuple[str, ...] = ()
    version: int = 0
    class_filter: bool = False
    hashes: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False
    )
    born_ms: int = field(default=0, compare=False, repr=False)
    filter: Expression | None = field(default=None, compare=False, repr=False)
    is_tag: bool = field(init=False, compare=False, repr=False)
    matches_all: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        is_tag = self.kind in ("", TAG)
        object.__setattr__(self, "is_tag", is_tag)
        object.__setattr__(self, "matches_all", is_tag and self.expression == ALL)

    @property
    def skips_by_code(self) -> bool:
        """Whether units are skipped by their tags codes, without their records."""
        return self.is_tag and not self.matches_all

    def mask(self, tags_codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which tags codes match: (n,) i8 -> (n,) bool.

        Source: ExpressionMessageFilter.isMatchedByConsumeQueue
        """
        if self.matches_all or not self.is_tag:
            return np.ones(tags_codes.size, np.bool_)
        low = tags_codes.astype(np.int32).astype(np.int64)  # Apache compares the low 32 bits
        if self.hashes.size == 1:
            return np.asarray(low == self.hashes[0])
        return np.isin(low, self.hashes)

    def registered(self, now_ms: int, old: Subscription | None) -> Subscription:
        """Return the subscription of a heartbeat with the time of its property filter.

        Args:
            old: Subscription that it replaces.
        """
        if self.is_tag:
            return self
        is_same = old is not None and (old.kind, old.expression) == (self.kind, self.expression)
        return replace(self, born_ms=old.born_ms if old is not None and is_same else now_ms)

    def filter_json(self, group: str) -> dict[str, object] | None:
        """Return the property filter of a group in a response to 321. ConsumerFilterData"""
        if self.is_tag:
            return None
        return {
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": group,
            "dead": False,
            "deadTime": 0,
            "expression": self.expression,
            "expressionType": self.kind,
            "topic": self.topic,
        }

    def to_json(self) -> dict[str, object]:
        """Return the JSON object in responses to 203, 321 and 345."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(int(h) for h in self.hashes),
            "expressionType": self.kind or TAG,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def tag_hashes(tags: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return the sorted Java hashes of tags: (n,) i8."""
    return np.array(sorted({java_hash(tag) for tag in tags}), np.int64)


def parse_expression(
    topic: str, expression: str | None, kind: str | None = None, version: int = 0
) -> Subscription:
    """Parse the expression of a pull or a heartbeat.

    Raises:
        ExpressionError: A tag expression has no tag or more than TAGS_MAX, or an expression is
            longer than EXPRESSION_CHARS_MAX.
    Source: FilterAPI.build
    """
    chars = len(expression or "") + len(kind or "")
    if chars > EXPRESSION_CHARS_MAX:
        raise ExpressionError(
            f"topic {topic}: an expression of {chars} characters; the limit is "
            f"{EXPRESSION_CHARS_MAX}"
        )
    kind = kind or TAG
    if kind != TAG:
        return Subscription(topic, expression or "", kind, version=version)
    if expression is None or expression in ("", ALL):
        return Subscription(topic, version=version)
    if not expression.strip("|"):
        raise ExpressionError(f"topic {topic}: {expression!r} contains no tag")
    tags = tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
    if len(tags) > TAGS_MAX:
        raise ExpressionError(f"topic {topic}: {len(tags)} tags; the limit is {TAGS_MAX}")
    return Subscription(topic, expression, TAG, tags, version, hashes=tag_hashes(tags))
