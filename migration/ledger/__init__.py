"""Ledger of migrations: what was migrated, by whom and when. No decision depends on it.

    marks in the log --fold--> records --write--> SQLite beside the store, or PostgreSQL by URL

Everything a migration needs stands in the log. The ledger may be deleted, locked or full: the
migration goes on, and the ledger is caught up from the fold when it is back.
"""
