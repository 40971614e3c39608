"""Enqueue: links a unit of each timer into timer log and wheel."""
