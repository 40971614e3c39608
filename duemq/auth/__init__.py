"""Access control: accounts, signatures, policies, the rules of each request code, the audit log."""
