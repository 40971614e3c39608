"""`make demo-ha`: failover demo that kills a master under load and counts every delivery."""
