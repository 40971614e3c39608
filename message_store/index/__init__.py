"""Key index files, and lookups of many keys."""
