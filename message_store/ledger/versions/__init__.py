"""Steps of the ledger's schema, oldest first. A released step is never edited: add another one.

`alembic -c` is not needed: schema.py runs them. Make a new one by hand from the newest, and let
tests/message_store/ledger/test_schema.py checks that models and steps agree.
"""
