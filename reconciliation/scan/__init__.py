"""Files of a store to columns."""
