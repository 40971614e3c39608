"""Ledger of a store: a database that records migrations and audits. No decision depends on it.

    broker       LedgerWriter --daemon thread--> Ledger
    offline      LedgerWriter --daemon thread--> Ledger
    audit        Ledger
    history      Ledger.open_existing, read by duemq_migration.ledger.reader

Callers write `Record`s; the package defines their tables, not their meaning. The first process to
open a ledger creates its schema (docs/decisions/0015). Only `ledger.py` and what it
imports load SQLAlchemy.
"""
