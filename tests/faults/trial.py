"""What a fault test shows for itself: that its fault fired, and what was held against what afterwards."""

import random
from collections import Counter
from typing import Final, Literal, get_args

CLASSES: Final = {
    # processes
    "worker-killed": "SIGKILL at random moments under load; another worker takes over",
    "filters-killed": "SIGKILL of mills whose recipe has every step, with its kernels, its lists and its model",
    "step-killed": "SIGKILL before and after every step that a commit or a message takes",
    "worker-terminated": "SIGTERM under load",
    "mill-stopped": "SIGSTOP past the Kafka session, another worker takes over, SIGCONT",
    "segment-worker-stopped": "a stopped process keeps the lock of its directories",
    "workers-scaled": "workers added and removed every few seconds, 1 to 4 to 1",
    "produce-killed": "`tokenmill produce` killed at random and called again, over files of every format",
    "pack-killed": "`tokenmill pack`, or one of its processes, killed at random and called again",
    "mirror-killed": "SIGKILL at random moments of a mirror, at its start too; the next one goes on",
    "upload-killed": "`tokenmill upload` killed at random moments, and called again",
    "uploaders-compete": "uploads of several stores into one bucket at once, all of them killed again and again",
    "bucket-fails": "requests that fail before or after they took effect, 409, and a login without rights",
    "cache-broken": "ranks that read a bucket killed, those that fetch too; their cache deleted in between",
    "ranks-killed": "SIGKILL of ranks of a training run over a mixture that grows; more or fewer go on from its state",
    # two at once
    "store-shared": "two segment workers, or two groups of them, on one store",
    "stream-shared": "two mills in two groups on one stream",
    "genesis-raced": "two mills with different settings both find a new stream",
    # the disk
    "power-lost": "what was not synced is there, absent or torn, in every combination a crash can leave",
    "segment-truncated": "the active segment's files cut at every byte of the last two commits",
    "bits-flipped": "single bits changed, committed and not, in every kind of file of a store",
    "files-missing": "files of a store deleted, foreign ones copied in, stale ones left over",
    "disk-full": "no space left, at any call and on a real small file system; then space again",
    "sync-failed": "a sync or a write fails once, or is interrupted",
    "disk-gone": "the store read-only, vanished, or no file handles left",
    "odd-tokens": "blocks of zeros, of ones, of the formats' own magic numbers, of padding alone",
    "reader-follows": "a reader that never closes, over rolls, kills, repairs and retired segments",
    # Kafka
    "broker-killed": "the broker killed under load and started again",
    "broker-paused": "the broker stopped for seconds, again and again, under load",
    "network-broken": "connections delayed, reset and left half open between service and broker",
    "token-expires": "brokers end the connections of logins whose tokens are over, every few seconds, under load",
    "send-failed": "a message written although its sender got an error, refused, or refused before a later one",
    "dead-letters-refused": "the dead-letter topic refuses what is sent to it: its partition waits, the others go on",
    "source-retained": "retention deletes what the cursor, the open blocks or a new store need",
    "source-recreated": "a raw or token topic deleted and made again, shorter, longer, or with other text",
    "logs-rewritten": "raw and token topic lose their tails and get other records at the same offsets",
    "source-gaps": "aborted transactions, transaction markers, offsets that are nobody's",
    "groups-moved": "committed offsets of consumer groups deleted, moved back, moved ahead",
    "partitions-added": "a raw topic gets partitions while the service runs",
    "thin-split": "a split so thin that its open block is older than what the raw topic retains",
    "control-junk": "junk of every kind under every key on the control topics, before and while workers run",
    "foreign-messages": "messages of somebody else, and of another stream, on a token topic",
    # eras
    "era-step-killed": "the mill that closes eras is killed before and after each step of closing one",
    "eras-contested": "two mills, one stopped past its session or of another group, both close eras",
    "eras-lost": "the control topic loses eras that were acknowledged, or is deleted and made again",
    "eras-behind": "a store whose eras run ahead of its blocks, and one whose blocks run ahead of its eras",
    "eras-owner-halted": "the owner of partition 0 closes eras for the others while its own chain is halted",
    "era-files-broken": "the files of a store's eras killed over, cut, flipped, deleted and foreign",
    # duplicates
    "duplicates-killed": "mills, sequencers and the broker killed, or stopped past their sessions, while texts come",
    "verdicts-lost": "signature and verdict logs lose their ends or beginnings; raw texts rewritten once signed",
    # work and settings
    "bad-inputs": "every row of the table of bad inputs at once, among good documents",
    "poison-record": "a record that is poison for one stage: fetch, decode, learn, steps, tokenizer or letter",
    "record-kills": "a record that kills workers, at any stage that it passes; at the third death its partition halts",
    "step-fails": "a transform that raises, hangs, or kills its process",
    "engine-differs": "a tokenizer engine gives other ids than the reference",
    "engine-panics": "native code panics over a text, or holds the interpreter until the supervisor kills the worker",
    "settings-changed": "other settings on an existing stream, or settings that cannot work",
    "clock-moved": "the clock jumps by a day while blocks are made and segments roll",
    "backlog": "far more text than the service takes in a while",
    "http-held-open": "hundreds of half-open requests at few descriptors, while workers die",
    "metrics-scraped": "`/metrics` is read while workers die and start",
    "simulated": "kills, zombies, lost and rewritten logs, retention and refused sends at any step of the pure code",
    "mixed": "all of the above at random, for as long as one likes (`make soak`)",
}
"""Name of each class and what is done; `docs/reliability.md` has the same list, with the promise that each attacks."""


Oracle = Literal["exact", "complete", "conserved", "dead letters", "topic", "reader", "eras", "alive", "loud"]
"""What can be held against a service after, or while, it was broken.

exact: the committed blocks of each chain are, byte for byte, a prefix of the reference's answer
complete: they are all of it
conserved: the totals balance, and are the reference's
dead letters: each record that is no document has one, with the right reason, counted once an offset
topic: the token topic, duplicates dropped, has the same blocks in the same order
reader: who reads all the while gets every block once, in order, and no other
eras: one chain of eras, ranges without gap or overlap from block 0 on, hashes those of the blocks, and a store's eras
    are the topic's; once quiet, every block is in one
alive: after the fault a new document is committed without anyone's hand
loud: what cannot heal says where, why and what to do, with the right exit code or state, and nothing else stops
"""

ORACLES: Final = get_args(Oracle)


ALIVE_SECONDS: Final = 30.0
"""Within which a service lives again that heals. Held against it in the long run, which has the machine to itself: in
the short form three tests run side by side, and how long anything takes is theirs as well."""


class Trial:
    """One run of a fault test: its random numbers and its length, and what it saw.

    A test that ends well without a fault that fired, or without an oracle, has failed (`tests/faults/conftest.py`).
    """

    def __init__(self, rng: random.Random, *, full: bool) -> None:
        """Start with nothing seen."""
        self.rng = rng
        """From a seed that is printed; ``FAULT_SEED=<number>`` repeats a run's choices."""
        self.full = full
        """Whether this is a full run (`make faults`): rounds are many, not few."""
        self.faults: Counter[str] = Counter()
        self.oracles: set[Oracle] = set()
        self.figures: Counter[str] = Counter()
        self.slowest = 0.0
        """The most seconds that it took to live again."""

    def rounds(self, short: int, full: int) -> int:
        """Return how often to do what the test does."""
        return full if self.full else short

    def fired(self, what: str, times: int = 1) -> None:
        """Note that a fault was seen to take effect (an exit by the signal, an error in the log), so many times."""
        self.faults[what] += times

    def held(self, *oracles: Oracle, **figures: int) -> None:
        """Note which oracles were asked and agreed, and figures worth adding up (blocks, duplicates, bytes cut)."""
        self.oracles.update(oracles)
        self.figures.update(figures)

    def lived(self, seconds: float) -> None:
        """Note that the service lived again, without anyone's hand, so many seconds after the fault had healed."""
        self.slowest = max(self.slowest, seconds)
        self.held("alive", probes=1)
        if self.full:
            assert seconds <= ALIVE_SECONDS, f"it lived again after {seconds:.0f} seconds"
