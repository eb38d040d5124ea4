"""Training loops: one module for each framework, each a small program that docs/training.md could show."""
