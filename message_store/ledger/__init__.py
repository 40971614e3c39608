"""The ledger of a store: a database beside it that tells what was done. Never asked for truth.

    message_store.ledger                connections, schema and its steps, whose it is
    migration.ledger                    plans, runs, levels, events
    reconciliation.jobs.audit_ledger    audits

One database and one chain of steps for all that is told of a store: whoever opens it first brings
it to the newest schema (docs/decisions/0020). SQLAlchemy is loaded by those who open one.
"""
