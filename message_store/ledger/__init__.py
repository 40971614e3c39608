"""Ledger of a store: a database of what was done. The log never depends on it.

    message_store.ledger                connections, schema and its steps, whose it is
    migration.ledger                    plans, runs, levels, events
    reconciliation.jobs.audit_ledger    audits

One database and one chain of steps for all records about a store: the first to open it brings
it to the newest schema (docs/decisions/0020). SQLAlchemy is loaded by those who open one.
"""
