"""Topics, groups, clients and consumer offsets, and the tables that keep them."""
