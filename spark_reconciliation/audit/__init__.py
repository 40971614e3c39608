"""Audit: from columns of records to a verdict about every scheduled message."""
