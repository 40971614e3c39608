"""Due time of a timer, derived from its properties at the put and at every later read.

    DUEMQ_DUE_MS       its value; in records whose TIMER_* differ (spread, or copied)
    TIMER_DELAY_SEC    store time + seconds       \\
    TIMER_DELAY_MS     store time + ms             > the first of these that is present
    TIMER_DELIVER_MS   its value                  /
    otherwise          TIMER_OUT_MS + precision

A delay counts from the store time. A copy that an Apache broker wrote while rolling was stored
later, so its TIMER_OUT_MS is used instead: it has TIMER_ROLL_TIMES, or TIMER_ROLL_LABEL if the
timeline in RocksDB (5.4) wrote it. TIMER_OUT_MS is Apache's slot, the last whole slot before the
due time, so no timer is due before TIMER_OUT_MS + 1; a record without it is not a timer.
`kernels.due_time` is the compiled twin.

Source: TimerMessageStore, HookUtils
"""

from __future__ import annotations

from collections.abc import Mapping

from timer_store.layout import DUE_MS_MAX


def due_ms_of(properties: Mapping[str, str], store_ms: int, precision_ms: int) -> int | None:
    """Return the exact due time of a record of the timer topic, None if it is not a timer.

    Args:
        store_ms: Store time of the record.
        precision_ms: Precision of its store.
    """
    out_ms = number_of(properties.get("TIMER_OUT_MS"))
    if out_ms is None or out_ms < 0:
        return None
    due_ms = _promised_ms(properties, store_ms)
    if due_ms is None:
        due_ms = out_ms + precision_ms
    due_ms = max(due_ms, out_ms + 1)
    return due_ms if due_ms <= DUE_MS_MAX else None


def _promised_ms(properties: Mapping[str, str], store_ms: int) -> int | None:
    exact = number_of(properties.get("DUEMQ_DUE_MS"))
    if exact is not None:
        return exact
    is_rolled = "TIMER_ROLL_TIMES" in properties or "TIMER_ROLL_LABEL" in properties
    for name, factor in (("TIMER_DELAY_SEC", 1_000), ("TIMER_DELAY_MS", 1)):
        if name in properties:
            delay = number_of(properties[name])
            stored_ms = min(max(store_ms, 0), DUE_MS_MAX)
            return None if delay is None or is_rolled else stored_ms + delay * factor
    return number_of(properties.get("TIMER_DELIVER_MS"))


def number_of(text: str | None) -> int | None:
    """Return a decimal number of at most 18 digits, else None."""
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
