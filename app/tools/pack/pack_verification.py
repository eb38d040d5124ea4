"""Whether a packed store is what its files make: everything is read and milled again, and compared byte for byte."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenmill.eras import EraLog
from tokenmill.errors import InputError, StoreError, TokenMillError
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.store import StreamInfo, open_eras, open_partition, read_stream
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, stream_directory
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.message import Message
from tokenmill.wire.totals import Totals

from ...milling.chain_mill import ChainMill
from ...milling.duplicates.parameters import deduplication_of
from ...milling.outcomes import Stages
from ...milling.partition_mill import Looked, PartitionMill
from ...milling.tokenizers import TokenizerFile, reference_of
from ...settings import Settings
from ...sources.file_sources import Reading
from ...sources.items import DocumentSource
from ..produce.sender import Acknowledged
from ..produce.summary import Progress, Summary, reporting
from ..verify.comparison import BlockRun, difference
from ..verify.reference_sample import ReferenceSample, SampleCheck, Sampler
from ..verify.two_sides import StoreSide
from ..verify.verify_bounds import StoreEras, StoreMark, store_mark
from ..verify.verify_result import ChainResult, VerifyDifference
from .judging import Judging
from .mill_processes import Millers, MillTask, joined
from .pack_state import PackFiles, PackPosition, pack_directory
from .packing_run import Dealer, PackPlan, geneses_of, mill_task, plan_pack, require_unchanged
from .partition_packer import MESSAGE_BYTES, ChainEnd, genesis_start


@dataclass(slots=True)
class PackVerification(Summary):
    """What was found."""

    chains: list[ChainResult] = field(default_factory=list)
    differences: list[VerifyDifference] = field(default_factory=list)
    eras: dict[str, int] = field(default_factory=dict)
    """By stream, how many were right."""
    sample_seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; documents that are still to be packed are not."""
        return not self.differences

    @property
    def blocks(self) -> int:
        """Blocks that are equal."""
        return sum(chain.store_equal for chain in self.chains)

    @property
    def behind(self) -> int:
        """Blocks that the files make, and the store does not hold yet."""
        return sum(chain.reference_blocks - (chain.store_blocks or (0, 0))[1] for chain in self.chains)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "ok": self.ok,
            "complete": self.ok and self.behind <= 0,
            "blocks": self.blocks,
            "behind": max(0, self.behind),
            "sampled_blocks": sum(chain.sampled_blocks for chain in self.chains),
            "sample_seed": self.sample_seed,
            "seconds": round(self.seconds, 3),
            "eras": self.eras,
            "totals": sum((chain.totals for chain in self.chains), Totals()).to_dict(),
            "differences": [asdict(one) for one in self.differences],
        }


async def verify_pack(
    settings: Settings,
    sources: Sequence[DocumentSource],
    reading: Reading,
    plan: PackPlan,
    *,
    sample: ReferenceSample,
    progress: Progress = lambda _: None,
) -> PackVerification:
    """Read the files and mill them again, and compare the store with that, byte for byte; nothing is written.

    Tokens, document tables, hashes, checksums, indexes and manifests are compared, and the eras with the blocks that
    they name. Runs of documents that ``sample`` chooses are computed by the reference as well.

    Raises InputError where a source has changed since it was packed, or the store was packed by another command;
    StoreError where the store holds no such streams; and as `pack`.
    """
    topic_plan = await asyncio.to_thread(plan_pack, settings, plan.raw_topic, plan.partitions)
    own = settings.for_topic(plan.raw_topic)
    files = PackFiles(pack_directory(settings.store.absolute(), plan.raw_topic, own.stream_suffix))
    run = files.read_run()
    if run is None:
        raise StoreError(
            f"{settings.store} holds nothing that was packed for {plan.raw_topic}: check --store and --topic"
        )
    if plan.identity is None or (plan.identity, plan.partitions) != (run.run, run.partitions):
        raise InputError(
            f"{settings.store} was packed by a command with other files, options or partitions ({run.partitions} "
            "partitions): verify it with those"
        )
    await asyncio.to_thread(lambda: require_unchanged(run, sources, read=True))
    found = PackVerification(plan.raw_topic, {number: Acknowledged() for number in range(plan.partitions)})
    found.limit, found.sample_seed = plan.limit, sample.seed
    geneses = geneses_of(topic_plan, plan.partitions, own.segment_blocks)
    geneses = [_held(settings, genesis, topic_plan.tokenizer, found) for genesis in geneses]
    task = mill_task(settings, topic_plan, geneses, reading, files)
    task = replace(task, open_partition=PartitionVerifier, sample=sample, rejects=False)
    beginning, position = PackPosition.start(len(sources), run), files.read_position()
    with ExitStack() as stack, Millers(task, plan.partitions, plan.processes) as millers:
        dealer = Dealer(millers, found, plan, beginning, await millers.opened())
        deduplication = deduplication_of(geneses[0].recipe.dedup)
        if deduplication is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tokenmill-verify-")))
            dealer.judging = Judging(millers, deduplication, folder)
        async with reporting(found, progress):
            await dealer.read(sources, beginning.state)
            await dealer.deal_open()
            if position is not None and position.flushed:
                await dealer.flush()
            ends = await joined(millers.commit())
    for number in sorted(ends):
        found.chains += [end.verified for end in ends[number].values() if end.verified is not None]
    found.differences += [one for chain in found.chains for one in chain.differences]
    for genesis in geneses:
        blocks = {number: (ends[number][genesis.recipe.split].verified or _NOTHING).store_equal for number in ends}
        _check_eras(settings, genesis, blocks, found)
    progress(found)
    return found


def _held(settings: Settings, genesis: Genesis, tokenizer: TokenizerFile, found: PackVerification) -> Genesis:
    """Return the genesis as the store has it; compare what describes the stream.

    Raises StoreError or DamagedError where the store does not hold the stream, or its description was changed.
    """
    directory = stream_directory(settings.store, genesis.stream)
    if not (directory / STREAM_FILE).exists():
        raise StoreError(f"{settings.store} does not hold {genesis.stream}: pack it, or check --store")
    held = read_stream(settings.store, genesis.stream)
    if held.fingerprint != genesis.recipe.fingerprint:
        told = held.differences(StreamInfo.from_genesis(genesis, genesis.segment_blocks))
        raise InputError(f"{genesis.stream} was packed with other settings ({told}): verify it with those")
    if tokenizer.content is not None:
        path = directory / TOKENIZER_FILE
        if not path.exists() or path.read_bytes() != tokenizer.content:
            text = f"{path} is missing, or not the tokenizer of the stream"
            found.differences.append(VerifyDifference("store", "damaged", genesis.stream, None, text))
    return Genesis.from_dict(held.values["genesis"])


def _check_eras(settings: Settings, genesis: Genesis, blocks: Mapping[int, int], found: PackVerification) -> None:
    """Check that eras continue each other, name the hashes that the blocks have, and have all blocks.

    ``blocks``: how many of each partition are right.
    """
    log, stream = EraLog(genesis.recipe.fingerprint), genesis.stream

    def differs(text: str, era: int) -> None:
        found.differences.append(VerifyDifference("store", "damaged", stream, None, text, era=era))

    held = StoreEras.look(settings.store, stream)
    if held is not None and held.damage is not None:
        return differs(held.damage, held.eras)
    try:
        reader = open_eras(settings.store, stream)
        partitions = {number: open_partition(settings.store, stream, number) for number in blocks}
        for number in range(reader.eras):
            era = reader.era(number)
            if log.add(era.pack()) is None:
                return differs("it does not continue the era before it", number)
            for partition, part in enumerate(era.ranges):
                if part.blocks and partitions[partition].chain_before(part.stop) != part.after:
                    return differs(f"it names other blocks of partition {partition} than the store holds", number)
    except TokenMillError as error:
        return differs(str(error), log.next_number)
    found.eras[stream] = log.next_number
    waiting = sum(count - log.end(number)[0] for number, count in blocks.items())
    if waiting > 0 and found.behind <= 0 and not found.differences:
        differs(f"{waiting} blocks are in no era: call the same pack again, which closes it", log.next_number)
    return None


_NOTHING = ChainResult("", 0, "", (0, 0), (0, 0))


class _VerifiedChain:
    """One chain, as the files make it, beside the store's."""

    def __init__(self, task: MillTask, genesis: Genesis, partition: int) -> None:
        self.recipe: Recipe = genesis.recipe
        self.mill = ChainMill(genesis.recipe, genesis_start(genesis, partition), message_bytes=MESSAGE_BYTES)
        mark = store_mark(task.store, genesis.stream, partition) or StoreMark(0, 0)
        self.result = ChainResult(
            genesis.stream, partition, genesis.recipe.raw_topic, (0, 0), (0, 0), store_blocks=(mark.first, mark.end)
        )
        info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
        self._side = StoreSide(task.store, info, self.result, mark)
        carry = task.files.read_partition(partition).carries.get(genesis.recipe.split)
        self._packed = carry.cursor.block if carry is not None else 0

    def compare(self, messages: Sequence[Message]) -> None:
        runs = [BlockRun.of(message) for message in messages]
        if runs:
            self.result.reference_blocks = messages[-1].end
            self._side.compare(BlockRun.joined(runs))

    def finish(self) -> ChainEnd:
        result, held = self.result, (self.result.store_blocks or (0, 0))[1]
        self._side.finish(result.reference_blocks, "what the files hold")
        if held < self._packed and not self._side.broken:
            text = f"the store holds {held} blocks, and {self._packed} were packed"
            result.differences.append(difference(result, "store", "missing", text, block=held))
        result.totals, result.open_tokens = self.mill.totals, self.mill.open_tokens
        return ChainEnd(result.reference_blocks, result.totals, result.open_tokens, result)


class PartitionVerifier:
    """Mills one partition again, and compares."""

    def __init__(self, task: MillTask, stages: Stages, partition: int) -> None:
        self._chains = [_VerifiedChain(task, genesis, partition) for genesis in task.geneses]
        self.mill = PartitionMill(stages, [chain.mill for chain in self._chains])
        self._reference = replace(stages, engine=reference_of(stages.engine))
        place = f"{task.geneses[0].recipe.raw_topic}/{partition}"
        self._sampler = Sampler(task.sample or ReferenceSample(0), place)

    def take(self, records: Sequence[SourceRecord], _: Looked | None = None) -> None:
        """Mill and compare consecutive records."""
        size = sum([len(record.value or b"") for record in records])
        for part, sampled in self._sampler.parts(records, size):
            checks = [SampleCheck(chain.mill, chain.result, self._reference) for chain in self._chains if sampled]
            milled = self.mill.feed(part)
            for chain in self._chains:
                chain.compare(milled.messages[chain.recipe.split])
            for check in checks:
                check.compare(part, milled.messages)

    def commit(self) -> None:
        """Do nothing: nothing is written."""

    def ends(self) -> dict[str, ChainEnd]:
        """Return what was found so far, as if the files ended here."""
        return {chain.recipe.split: chain.finish() for chain in self._chains}
