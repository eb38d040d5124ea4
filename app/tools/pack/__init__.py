"""From files into segments of a store, without Kafka: what `produce`, mill and segment worker make, byte for byte.

- `packing_run` is a run: it reads, numbers and deals out documents, commits, and closes eras.
- `mill_processes` are the processes that mill, each with some of the partitions; what was seen before is left out.
- `packed_partition` is what they write, eras, and what a killed run leaves for the next one to go on from.
- `parted_sources` divides large files, so that the processes read them side by side.
- `pack_verification` makes everything again and compares.
"""
