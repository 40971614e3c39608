"""The steps of a migration, and what bounds their pace."""
