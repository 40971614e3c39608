"""Steps of the ledger's schema, oldest first. A released step is never edited: add another one.

schema.py runs the steps, without `alembic -c`. Write a new step by hand, after the newest one;
tests/duemq_common/ledger/test_schema.py compares tables and steps.
"""
