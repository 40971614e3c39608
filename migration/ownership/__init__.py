"""Which side owns which messages: states, moves, and the projection of the journal."""
