"""How patient the supervisor is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All times are seconds."""

    heartbeat: float = 20.0
    """A worker that says nothing for as long is killed. Above Kafka's session time-out, after which another owns its
    partitions anyway, and above what a busy machine may take for one turn of an event loop."""
    start: float = 120.0
    """The same until a worker is ready: it loads a tokenizer, from the network perhaps."""
    grace: float = 15.0
    """Between SIGTERM and SIGKILL. Workers end in about a second; what is not durable then is done again."""
    first_backoff: float = 1.0
    """Before a worker that ended is started again; doubled each time ..."""
    longest_backoff: float = 10.0
    """... up to this: when what it waits for is back, it waits no longer than that. A start, and Kafka's session
    time-out of the worker before, come on top; blocks are to flow again within 30 s."""
    healthy: float = 60.0
    """A worker that lived as long gets the first backoff again."""
    unowned: float = 30.0
    """A partition that exists and that no member of the group owns for as long is a fault. Above the time that a group
    takes to notice a dead member."""
    still: float = 60.0
    """A partition with records to take and no progress for as long is a fault. Above the time for one fetch."""
    resume: float = 600.0
    """The same while a partition resumes: it may have to read a whole token partition."""
