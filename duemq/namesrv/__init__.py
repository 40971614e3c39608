"""Name server: routes from topics to brokers; registration of the broker with name servers."""
