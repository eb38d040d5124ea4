"""The fault classes: every way of breaking the service that a test here, or in `tests.simulation`, tries.

`docs/reliability.md` has the same list, with the promise that each one attacks; a test holds the two together.
"""

from typing import Final

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
"""Name of each class and what is done."""
