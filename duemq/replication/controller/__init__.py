"""Broker side of Apache's controller protocol: group membership, election, fencing."""
