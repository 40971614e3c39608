"""Single messages: queries, history, recall, decisions about pending ones."""
