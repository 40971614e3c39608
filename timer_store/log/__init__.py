"""Timer log and wheel: units of 52 bytes, chained by slot."""
