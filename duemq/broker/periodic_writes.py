"""Periodic writes of tables whose failures are log lines, not tracebacks of the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


def with_reports(
    write: Callable[[], Awaitable[object]], tables: str
) -> Callable[[], Awaitable[None]]:
    """Return a periodic job that writes tables, and reports a failing disk once per cause.

    Args:
        write: Writes what has changed; after an OSError the next call retries.
        tables: Names of the tables, for the log.
    """
    failure = ""

    async def written() -> None:
        nonlocal failure
        try:
            await write()
        except OSError as error:
            if str(error) != failure:
                log.error("%s cannot be written; it is tried again: %s", tables, error)
            failure = str(error)
            return
        if failure:
            log.info("%s: written again", tables)
        failure = ""

    return written
