"""Request processing of sends, consumer send-backs and replies."""
