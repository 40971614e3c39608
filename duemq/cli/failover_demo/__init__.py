"""`make demo-ha`: a master is killed under load, and every message arrives exactly once."""
