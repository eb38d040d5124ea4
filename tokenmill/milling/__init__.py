"""From records to messages: a fetch in columns, one chain, one raw partition, packings; and the reference."""
