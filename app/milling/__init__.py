"""From records to messages: pure, and fast over whole fetches.

The way of the records of one fetch, by container:

- `RecordColumns` (`columns`): the records, in columns; they are milled in parts of a few thousand.
- `OutcomeColumns` and, by split, `KeptDocuments` (`columns`): what becomes of each record, and the texts that are kept.
- `TokenBatch` (`tokenizers`): the ids of these texts.
- `ChainOutcomes` (`columns`): what one chain makes of the fetch: `TokenizedDocuments`, and counts of the rest.
- `PackedBlocks` (`packing.packed_blocks`): the blocks that became full.
- `Message` (`tokenmill.wire.message`): some of these blocks, and where the chain continues behind them.

`PartitionMill` takes records through all of them, `ChainMill` one chain's documents through the last three.
`outcomes` says what becomes of one record, and `reference` says all of it again, slowly.
"""
