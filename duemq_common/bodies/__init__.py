"""Bodies of requests of DueMQ that the client and the broker share."""
