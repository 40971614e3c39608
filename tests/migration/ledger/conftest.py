"""The databases of tests/message_store/ledger."""

from __future__ import annotations

from tests.message_store.ledger.conftest import opener, postgres, url

__all__ = ["opener", "postgres", "url"]
