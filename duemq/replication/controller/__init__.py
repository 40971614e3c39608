"""Broker side of Apache's controller protocol: member of a group, election, fencing."""
