"""Figures of streams for people: how much of the source is kept, what dropped the rest, in sentences and pictures."""
