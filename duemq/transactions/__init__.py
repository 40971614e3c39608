"""Transactional messages: half messages, commit and rollback, check-backs to producers."""
