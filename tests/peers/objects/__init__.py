"""Object stores as sources, on real servers."""
