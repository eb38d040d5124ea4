"""What replaces parts of aiokafka for speed."""
