"""Words, sentences and what rules are made of."""
