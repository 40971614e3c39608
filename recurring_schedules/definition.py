"""Definition of a schedule: when it fires, and the message of each occurrence."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from message_store.layout import SYS_COMPRESSED

EVERY_MS_MIN: Final = 1_000
JITTER_MS_MAX: Final = 86_400_000
CATCH_UP_MS: Final = 365 * 86_400_000
TIME_MS_MAX: Final = 10**14
NAME_CHARACTERS_MAX: Final = 200
EXCLUSIONS_MAX: Final = 1_000
EXPRESSIONS_MAX: Final = 20
EXPRESSION_CHARACTERS_MAX: Final = 1_000  # each value of each field takes about 530
CHARACTERS_MAX: Final = 32_000
"""Maximum number of characters of all expressions and exclusions; a parse takes 1 us for each."""
EVERY_DAYS_MAX: Final = 3_660
DEFINITION_BYTES_MAX: Final = 1 << 20
PROPERTIES_BYTES_MAX: Final = 31_000
"""Maximum bytes of tag, keys and properties in a record, which also has those of the broker."""
OVERLAPS: Final = ("all", "latest")
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXPRESSIONS_SEPARATOR: Final = ";"
COMPRESSION_MASK: Final = SYS_COMPRESSED | 0x700
"""Bits of sysFlag: whether the body is compressed, and how. MessageSysFlag"""
RESERVED: Final = re.compile(
    r"DUEMQ_|TIMER_|REAL_|__|(UNIQ_KEY|DELAY|DELAy|WAIT|TRAN_MSG|PGROUP)\Z"
)
"""Names of properties that the broker sets."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/%+-]+")
_SEPARATOR: Final = re.compile("[\x00-\x1f\x7f]")


class InvalidDefinition(ValueError):
    """A definition that cannot be a schedule; the text is an instruction."""


class Definition(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One schedule, as in requests and in the journal; times are ms since the epoch.

    Attributes:
        cron: Cron expressions of 5 or 6 fields, or aliases, separated by semicolons; empty with
            `every_ms`. A time of any of them is one of the schedule.
        zone: IANA zone of `cron` and of dates in `exclude`.
        every_ms: Interval; empty with `cron`.
        every_days: Keep the times of `cron` on every n-th date only, counted from the date of
            `start_ms`, or from Monday 1970-01-05; 0: on all dates.
        phase_ms: Offset of the interval's grid from the epoch.
        exclude: Dates (2026-12-25) and cron expressions that suppress occurrences.
        start_ms: First time of an occurrence; 0: the creation.
        end_ms: Last time of an occurrence; 0: never.
        jitter_ms: Maximum delay of an occurrence after its planned time.
        catch_up_ms: Maximum lateness of an occurrence; later ones are skipped.
        overlap: Whether `all` overdue occurrences are delivered, or only the `latest`.
        flag: Number of the application.
        compression: Bits of sysFlag that describe the compression of the body.
    """

    name: str
    topic: str
    cron: str = ""
    zone: str = "UTC"
    every_ms: int = 0
    every_days: int = 0
    phase_ms: int = 0
    exclude: tuple[str, ...] = ()
    start_ms: int = 0
    end_ms: int = 0
    jitter_ms: int = 0
    catch_up_ms: int = CATCH_UP_MS
    overlap: str = "all"
    body: bytes = b""
    tags: str = ""
    keys: str = ""
    properties: dict[str, str] = {}
    flag: int = 0
    compression: int = 0


_DECODER: Final = msgspec.json.Decoder(Definition)


def decode_definition(data: bytes) -> Definition:
    """Return a definition from JSON, without the checks of `check`.

    Raises:
        InvalidDefinition: The bytes are no definition.
    """
    if len(data) > DEFINITION_BYTES_MAX:
        raise InvalidDefinition(f"the definition has more than {DEFINITION_BYTES_MAX} bytes")
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidDefinition(f"the definition is invalid: {error}") from None


def split_expressions(text: str) -> tuple[str, ...]:
    """Return the expressions of a text, which are separated by semicolons."""
    parts = (part.strip() for part in text.split(EXPRESSIONS_SEPARATOR))
    return tuple(part for part in parts if part)


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> ZoneInfo:
    """Return a zone by its IANA name.

    Raises:
        InvalidDefinition: There is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidDefinition(
            f"there is no time zone {name[:60]!r}: give an IANA name such as Europe/Berlin"
        ) from None


def check(definition: Definition) -> None:
    """Check everything but the times of the occurrences (`occurrences.check_fires`).

    Raises:
        InvalidDefinition: A value cannot be used.
    """
    name = definition.name
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidDefinition(
            f"{name[:60]!r} cannot be the name of a schedule: use 1 to {NAME_CHARACTERS_MAX} "
            "characters of letters, digits and _ . : / % + -"
        )
    if not definition.topic:
        raise InvalidDefinition("no topic given")
    if bool(definition.cron) == bool(definition.every_ms):
        raise InvalidDefinition("give either a cron expression or an interval")
    if definition.every_ms and not EVERY_MS_MIN <= definition.every_ms <= TIME_MS_MAX:
        raise InvalidDefinition(
            f"an interval of {definition.every_ms} ms is too short or too long: the minimum is "
            f"{EVERY_MS_MIN} ms"
        )
    expressions = split_expressions(definition.cron)
    if definition.cron and not 0 < len(expressions) <= EXPRESSIONS_MAX:
        raise InvalidDefinition(f"give 1 to {EXPRESSIONS_MAX} cron expressions")
    _check_lengths(*expressions, *definition.exclude)
    if not 0 <= definition.every_days <= EVERY_DAYS_MAX:
        raise InvalidDefinition(f"the interval of days is not between 0 and {EVERY_DAYS_MAX}")
    if definition.every_days and not definition.cron:
        raise InvalidDefinition("an interval of days needs a cron expression for the time of day")
    zone_of(definition.zone)
    _check_times(definition)
    if len(definition.exclude) > EXCLUSIONS_MAX:
        raise InvalidDefinition(f"more than {EXCLUSIONS_MAX} exclusions")
    if definition.overlap not in OVERLAPS:
        raise InvalidDefinition(f"the overlap rule is one of: {', '.join(OVERLAPS)}")
    if len(definition.body) > DEFINITION_BYTES_MAX // 2:
        raise InvalidDefinition(f"the body has more than {DEFINITION_BYTES_MAX // 2} bytes")
    if definition.compression & ~COMPRESSION_MASK or not -(1 << 31) <= definition.flag < 1 << 31:
        raise InvalidDefinition("the flag or the compression is out of range")
    _check_properties(definition)


def _check_lengths(*expressions: str) -> None:
    lengths = [len(text) for text in expressions]
    if max(lengths, default=0) > EXPRESSION_CHARACTERS_MAX:
        raise InvalidDefinition(
            f"an expression has more than {EXPRESSION_CHARACTERS_MAX} characters"
        )
    if sum(lengths) > CHARACTERS_MAX:
        raise InvalidDefinition(
            f"the expressions and exclusions have more than {CHARACTERS_MAX} characters"
        )


def _check_times(definition: Definition) -> None:
    for label, value, highest in (
        ("phase", definition.phase_ms, TIME_MS_MAX),
        ("start", definition.start_ms, TIME_MS_MAX),
        ("end", definition.end_ms, TIME_MS_MAX),
        ("jitter", definition.jitter_ms, JITTER_MS_MAX),
        ("catch-up window", definition.catch_up_ms, TIME_MS_MAX),
    ):
        if not 0 <= value <= highest:
            raise InvalidDefinition(f"the {label} {value} is not between 0 and {highest} ms")
    if 0 < definition.end_ms < definition.start_ms:
        raise InvalidDefinition("the end is before the start")


def _check_properties(definition: Definition) -> None:
    own = ("TAGS", definition.tags), ("KEYS", definition.keys)
    properties = [*own, *definition.properties.items()]
    texts = (f"{name}={value};" for name, value in properties)
    if sum(len(text.encode(errors="replace")) for text in texts) > PROPERTIES_BYTES_MAX:
        raise InvalidDefinition(f"the properties have more than {PROPERTIES_BYTES_MAX} bytes")
    for name, value in properties:
        if not name or _SEPARATOR.search(name) or RESERVED.match(name):
            raise InvalidDefinition(f"the property {name[:60]!r} is reserved or malformed")
        if _SEPARATOR.search(value):
            raise InvalidDefinition(f"the value of property {name} has control characters")
