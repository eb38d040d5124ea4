"""Loaders of tokens side by side: TokenMill's, others', and the limit."""
