"""Consume queues and the table of topics."""
