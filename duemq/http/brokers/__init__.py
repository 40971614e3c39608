"""State of the brokers over HTTP: views, migrations, audits, configuration, audit log."""
