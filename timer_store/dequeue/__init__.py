"""Dequeue: slots of the wheel are loaded, staged, and delivered at their due millisecond."""
