"""How anyone reads a token partition: which blocks count, where a chain continues, what to do at a gap."""
