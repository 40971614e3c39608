"""Migrations in the ledger: records, their projection from the log, reader and history page.

`duemq_common.ledger` writes the records. No decision of a migration depends on them.
"""
