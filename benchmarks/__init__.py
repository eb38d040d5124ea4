"""How fast TokenMill is, beside what one would write or install instead (`README.md`)."""
