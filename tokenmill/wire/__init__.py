"""The bytes on Kafka: messages of blocks, cursors, totals, the chain hash, control records, dead letters."""
