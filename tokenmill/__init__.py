"""TokenMill: raw text in Kafka becomes training-ready token blocks, once each, in one order for every trainer.

The model in a few words, which docs/architecture.md has in full:

- A *stream* is one packing of one split of one raw topic, such as ``raw-text.train``. All settings that decide its
  tokens have a *fingerprint*; with other settings it is another stream.
- A *block* is a row of token ids, packed from documents without a gap. The blocks of a partition continue each other
  and are counted from 0, so a number means the same tokens of the same records in every copy.
- An *era* is a range of blocks of each partition. It becomes trainable at once, and is shuffled as a whole.
- A *sample* is a block, or one of its views. Samples are counted through the eras, in an order that the seed gives.
- A *step* takes the next ``world_size * batch_size`` samples, and each rank gets a slice of them.
- A *state* says how many samples were delivered. It is small, JSON, and equal on all ranks.
- A *store* is a directory that holds copies of streams, as files that grow.

``tokenmill.app`` is the service that fills stores, and ``tokenmill.consumers`` is what a training loop reads them with.
The modules here are what both agree on; they need neither Kafka nor torch. A block by its number, and its era:

    >>> from tokenmill.store import open_eras, open_partition
    >>> partition, eras = open_partition("store", "raw-text.train", 0), open_eras("store", "raw-text.train")
    >>> partition.read(5).shape, partition.documents(5)[0].start
    ((65,), 0)
    >>> eras.find(5)  # the era of block 5, counted through all partitions
    1
"""

from pathlib import Path

__version__ = "0.1.0"

# A checkout has app/ and consumers/ beside this folder; installed, they are inside. Python looks in its working
# directory first: in a checkout, it finds this folder there, whatever is installed.
if not (Path(__file__).parent / "consumers").exists():
    __path__.append(str(Path(__file__).parents[1]))
