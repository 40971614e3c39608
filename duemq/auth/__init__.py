"""Access control: accounts, signatures, policies and the rules of each request code.

The dispatcher does not check requests against it yet.
"""
