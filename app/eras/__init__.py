"""The eras of streams on Kafka: read from control topics, and closed by the mill that has partition 0.

`looking` follows the eras of one control topic, `extents` finds how far the token partitions reach, `closing` writes.
What counts, and what goes into an era, is decided by `tokenmill.eras`.
"""
