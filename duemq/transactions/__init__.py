"""Half messages, their end, and the check back at producers."""
