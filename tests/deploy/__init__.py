"""Files of `deploy/`."""
