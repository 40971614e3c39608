"""Enqueue: messages of sends and of the timer queue get their units in timer log and wheel."""
