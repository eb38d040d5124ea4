"""Documents that were seen before: signatures of texts, the window of those that were kept, and verdicts."""
