"""Documents that were seen before."""
