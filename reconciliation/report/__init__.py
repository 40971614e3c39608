"""The report of an audit as an HTML page."""
