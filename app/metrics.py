"""What a worker counts and measures, for Prometheus and people. Labels are closed sets, never a record's text."""

from prometheus_client import Counter, Gauge, Histogram

RECORDS = Counter("tokenmill_records_consumed", "Raw records taken from Kafka.", ["topic"])
CONSUMED_BYTES = Counter("tokenmill_consumed_bytes", "Bytes of their values.", ["topic"])
DOCUMENTS = Counter("tokenmill_documents", "Documents tokenized.", ["topic"])
DEAD_LETTERS = Counter("tokenmill_dead_letters", "Records dead-lettered, repeats after a restart included.", ["reason"])
TOKENS = Counter("tokenmill_tokens_produced", "Tokens made of documents, end-of-document ids not included.", ["topic"])
BLOCKS = Counter("tokenmill_blocks", "Blocks made durable.", ["sink"])
DUPLICATES = Counter("tokenmill_duplicate_blocks", "Blocks that came again and were dropped by number.")
GAPS = Counter("tokenmill_gaps", "Messages that began after the wanted block.")
COMMITS = Counter("tokenmill_commits", "Commits to segments.")
HALTED = Gauge("tokenmill_partitions_halted", "Partitions that stand until a person acts.")
STAGE_SECONDS = Counter("tokenmill_stage_seconds", "Seconds spent, by stage.", ["stage"])
COMMIT_SECONDS = Histogram("tokenmill_commit_duration_seconds", "Seconds to write and sync one commit.")
