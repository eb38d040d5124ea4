"""The page for people, in a real browser: ``make test-page``."""
