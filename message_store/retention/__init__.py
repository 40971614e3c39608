"""Which log files are removed, and what keeps them."""
