"""Report of an audit as an HTML page."""
