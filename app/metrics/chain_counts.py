"""What became of a chain's records, as counters: the growth of its totals."""

from tokenmill.milling import ChainMill

from .worker import DOCUMENTS, FILTERED, OTHER_RECORDS, TOKENS


class ChainCounts:
    """Counts what a chain's totals have grown by since the last look; what they held before does not count."""

    def __init__(self, raw_topic: str, chain: ChainMill) -> None:
        """Begin with the chain as it is."""
        self._topic = raw_topic
        self._chain = chain
        self._before = chain.totals.copy()

    def count(self) -> None:
        """Count what has been added."""
        before, now = self._before, self._chain.totals.copy()
        topic, split = self._topic, self._chain.recipe.split
        DOCUMENTS.labels(topic, split).inc(now.kept - before.kept)
        TOKENS.labels(topic, split).inc(now.tokens - before.tokens)
        for reason, n in now.filtered.items():
            FILTERED.labels(topic, split, reason).inc(n - before.filtered[reason])
        OTHER_RECORDS.labels(topic, split, "tombstone").inc(now.tombstones - before.tombstones)
        OTHER_RECORDS.labels(topic, split, "flush").inc(now.flushes - before.flushes)
        self._before = now
