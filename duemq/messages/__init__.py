"""Requests about single messages: query, history, recall, decisions on pending messages."""
