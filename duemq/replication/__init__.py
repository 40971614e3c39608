"""Replication with Apache's HA protocols: master, replica, and member of a controller's group."""
