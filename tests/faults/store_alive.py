"""Whether the service lives again after a fault: everything that is milled by now, and more, comes into the store."""

import time

from tests.service import Chain, Service, stored_blocks


def published(service: Service) -> dict[Chain, int]:
    """Return the next block of every chain that the mills milled."""
    return {
        (f"{name.rpartition('/')[0]}.{split}", int(name.rpartition("/")[2])): chain["block"]
        for worker in service.workers
        for name, partition in worker.partitions.items()
        for split, chain in partition.get("chains", {}).items()
    }


def wait_until_alive(service: Service) -> float:
    """Wait until the store has more than is milled by now, in every chain, while documents flow; return the seconds."""
    began, goal = time.monotonic(), published(service)
    assert goal
    service.wait_until(
        lambda: all(blocks > goal[chain] for chain, blocks in stored_blocks(service.settings, goal).items())
    )
    return time.monotonic() - began
