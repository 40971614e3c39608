"""The databases of tests/duemq_common/ledger."""

from __future__ import annotations

from tests.duemq_common.ledger.conftest import opener, postgres, url

__all__ = ["opener", "postgres", "url"]
