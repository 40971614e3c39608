"""Revival: messages that were not acknowledged in time are copied to their retry topic."""
