"""Whether a token topic still stands as it was when it was last verified; where not, nothing is taken for known.

A broker that lost the tail of a partition lets the mill write it again, in messages of other sizes and so at other
offsets. The offset at which an earlier verification ended then lies in the middle of what has yet to be verified, or
behind all of it, and what stands below it is not what was looked at.
"""

from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, InputError
from tokenmill.wire.chain import roll

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled
from ...kafka.token_topic import message_of, offset_before, record_at
from ...settings import Settings
from .marks import ChainMarks
from .verified import Earlier, Verified


async def standing(
    settings: Settings, streams: Sequence[Settled], marks: Sequence[ChainMarks], earlier: Earlier
) -> tuple[Earlier, list[str]]:
    """Return what of ``earlier`` the next verification may begin with, and notes on what it may not.

    A chain whose token partition was cut is left out, and so are the eras of its stream: they may name what was lost.

    Raises:
        InputError: the earlier verification was of other streams.

    """
    chains, eras, notes = dict(earlier.chains), dict(earlier.eras), list[str]()
    by_name = {settled.stream.name: settled for settled in streams}
    async with consumer(settings) as client:
        for chain in marks:
            verified = known(by_name[chain.stream], chain, earlier.chains)
            tokens = TopicPartition(by_name[chain.stream].stream.tokens_topic, chain.partition)
            if verified is None or await stands(client, tokens, chain.tokens, verified):
                continue
            del chains[chain.stream, chain.partition]
            eras.pop(chain.stream, None)
            notes.append(
                f"{tokens.topic}[{tokens.partition}] does not hold before offset {verified.token_offset} what it held "
                f"when it was last verified (it lost its end since): {chain.stream} partition {chain.partition} was "
                "verified from its beginning"
            )
    return Earlier(chains, eras), notes


def known(settled: Settled, chain: ChainMarks, earlier: Mapping[tuple[str, int], Verified]) -> Verified | None:
    """Return where an earlier verification of a chain ended, if there was one.

    Raises:
        InputError: it was of another stream of this name.

    """
    verified = earlier.get((chain.stream, chain.partition))
    if verified is not None and verified.carry.fingerprint != settled.genesis.recipe.fingerprint:
        raise InputError(
            f"what --since names tells of another stream {chain.stream}, with the fingerprint "
            f"{verified.carry.fingerprint.hex()}: remove the file, and everything is verified again"
        )
    return verified


async def stands(client: AIOKafkaConsumer, tokens: TopicPartition, span: tuple[int, int], verified: Verified) -> bool:
    """Return whether the last of the verified blocks still stands below the offset where a verification ended.

    ``span`` is what the partition retains. Mostly one fetch tells: the message before that offset ends with the block.
    ``client`` is used by nobody else meanwhile.
    """
    carry, ended = verified.carry, verified.token_offset
    first, end = span
    if end < ended:
        return False
    if first >= ended:
        return True  # retention took it all, and nothing is left to look at
    try:
        record = await record_at(client, tokens, ended - 1, ended)
        if record is not None:
            message = message_of(record, tokens)
            if message.end >= carry.first:
                return (message.end, message.after) == (carry.first, carry.after)
        return await _holds_last(client, tokens, span, verified)
    except DamagedError:
        return False  # whoever reads the topic from its beginning names it


async def _holds_last(
    client: AIOKafkaConsumer, tokens: TopicPartition, span: tuple[int, int], verified: Verified
) -> bool:
    """Search the last verified block, which does not end the message where the verification ended."""
    block, first = verified.carry.first - 1, span[0]
    low = await offset_before(client, tokens, verified.carry.fingerprint, block, span)
    record = await record_at(client, tokens, low, span[1])
    message = message_of(record, tokens) if record is not None else None
    if message is None or not message.first <= block < message.end:
        return first > 0  # retention may have taken it
    return roll(message.before, message.tokens, message.entries)[block - message.first] == verified.carry.after
