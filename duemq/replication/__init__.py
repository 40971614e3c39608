"""Replication with Apache's HA protocol: this broker as the replica of a master."""
