"""From the wheel to the topics: load slots, wait for the millisecond, deliver."""
