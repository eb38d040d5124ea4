"""Whether a packed store is what its files make: everything is read and milled again, and compared byte for byte."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenmill.documents import SourceRecord
from tokenmill.eras import EraLog
from tokenmill.errors import InputError, StoreError, TokenMillError
from tokenmill.recipe import Genesis, Recipe
from tokenmill.store import StreamInfo, open_eras, open_partition, read_stream
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, stream_directory
from tokenmill.wire.message import Message

from ...milling.duplicates.signatures import deduplication_of
from ...milling.outcomes import Stages
from ...milling.partition_mill import ChainMill, Looked, PartitionMill
from ...milling.tokenizers import TokenizerFile, reference_of
from ...settings import Settings
from ...sources.file_sources import Reading
from ...sources.items import DocumentSource
from ..produce.sending import Acknowledged, Progress, Summary, reporting
from ..verify.sides import ReferenceSample, SampleCheck, Sampler, StoreSide
from ..verify.verify_bounds import StoreEras, StoreMark, store_mark
from ..verify.verify_result import BlockRun, ChainResult, EraResult, VerifyDifference, VerifyResult
from .mill_processes import Judging, Millers, MillTask, joined
from .packed_partition import MESSAGE_BYTES, ChainEnd, PackFiles, PackPosition, genesis_start, pack_directory
from .packing_run import Dealer, PackPlan, geneses_of, mill_task, plan_pack, require_unchanged


async def verify_pack(
    settings: Settings,
    sources: Sequence[DocumentSource],
    reading: Reading,
    plan: PackPlan,
    *,
    sample: ReferenceSample,
    progress: Progress = lambda _: None,
) -> VerifyResult:
    """Read the files and mill them again, and compare the store with that, byte for byte; nothing is written.

    Tokens, document tables, hashes, checksums, indexes and manifests are compared, and the eras with the blocks that
    they name. Runs of documents that ``sample`` chooses are computed by the reference as well.

    Raises InputError where a source has changed since it was packed, or the store was packed by another command;
    StoreError where the store holds no such streams; DamagedError where their description was changed; and as `pack`.
    """
    topic_plan = await asyncio.to_thread(plan_pack, settings, plan.raw_topic, plan.partitions)
    own = settings.for_topic(plan.raw_topic)
    files = PackFiles(pack_directory(settings.store.absolute(), plan.raw_topic, own.stream_suffix))
    if (run := files.read_run()) is None:
        raise StoreError(
            f"{settings.store} holds nothing that was packed for {plan.raw_topic}: check --store and --topic"
        )
    if plan.identity is None or (plan.identity, plan.partitions) != (run.run, run.partitions):
        raise InputError(
            f"{settings.store} was packed by a command with other files, options or partitions ({run.partitions} "
            "partitions): verify it with those"
        )
    await asyncio.to_thread(lambda: require_unchanged(run, sources, read=True))
    read = Summary(plan.raw_topic, {number: Acknowledged() for number in range(plan.partitions)})
    differences: list[VerifyDifference] = []
    read.limit = plan.limit
    geneses = geneses_of(topic_plan, plan.partitions, own.segment_blocks)
    geneses = [_held(settings, genesis, topic_plan.tokenizer, differences) for genesis in geneses]
    task = mill_task(settings, topic_plan, geneses, reading, files)
    task = replace(task, open_partition=PartitionVerifier, sample=sample, rejects=False)
    beginning, position = PackPosition.start(len(sources), run), files.read_position()
    with ExitStack() as stack, Millers(task, plan.partitions, plan.processes) as millers:
        dealer = Dealer(millers, read, plan, beginning, await millers.opened())
        deduplication = deduplication_of(geneses[0].recipe.dedup)
        if deduplication is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tokenmill-verify-")))
            dealer.judging = Judging(millers, deduplication, folder)
        async with reporting(read, progress):
            await dealer.read(sources, beginning.state)
            await dealer.deal_open()
            if position is not None and position.flushed:
                await dealer.flush()
            ends = await joined(millers.commit())
    chains = [end.verified for number in sorted(ends) for end in ends[number].values() if end.verified is not None]
    differences += [one for chain in chains for one in chain.differences]
    packed = not any(chain.store_behind for chain in chains)
    eras = []
    for genesis in geneses:
        blocks = {chain.partition: chain.store_equal for chain in chains if chain.stream == genesis.stream}
        eras.append(_check_eras(settings, genesis, blocks, all_packed=packed and not differences))
        differences += eras[-1].differences
    eras = [one for one in eras if one.eras or not one.differences]
    return VerifyResult(chains, differences, (), read.seconds, sample.seed, eras)


def _held(
    settings: Settings, genesis: Genesis, tokenizer: TokenizerFile, differences: list[VerifyDifference]
) -> Genesis:
    """Return the genesis as the store has it, and compare what describes the stream. Raises as `verify_pack`."""
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
            differences.append(VerifyDifference("store", "damaged", genesis.stream, None, text))
    return Genesis.from_dict(held.values["genesis"])


def _check_eras(settings: Settings, genesis: Genesis, blocks: Mapping[int, int], *, all_packed: bool) -> EraResult:
    """Check that eras continue each other and name the right ``blocks``; where ``all_packed``, all of these."""
    log, stream = EraLog(genesis.recipe.fingerprint), genesis.stream

    def differs(text: str, era: int) -> EraResult:
        return EraResult(stream, differences=[VerifyDifference("store", "damaged", stream, None, text, era=era)])

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
    waiting = sum(count - log.end(number)[0] for number, count in blocks.items())
    if waiting > 0 and all_packed:
        found = differs(f"{waiting} blocks are in no era: call the same pack again, which closes it", log.next_number)
        return replace(found, eras=log.next_number)
    return EraResult(stream, eras=log.next_number)


class _VerifiedChain:
    def __init__(self, task: MillTask, genesis: Genesis, partition: int) -> None:
        self.recipe: Recipe = genesis.recipe
        self.mill = ChainMill(genesis.recipe, genesis_start(genesis, partition), message_bytes=MESSAGE_BYTES)
        mark = store_mark(task.store, genesis.stream, partition) or StoreMark(0, 0)
        self.result = ChainResult(
            genesis.stream, partition, genesis.recipe.raw_topic, (0, 0), (0, 0), store_blocks=(mark.first, mark.end)
        )
        self._side = StoreSide(task.store, StreamInfo.from_genesis(genesis, genesis.segment_blocks), self.result, mark)
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
            result.differences.append(result.difference("store", "missing", text, block=held))
        result.totals, result.open_tokens = self.mill.totals, self.mill.open_tokens
        result.topic_blocks = 0, result.reference_blocks  # as on a topic that holds all that the files make
        return ChainEnd(result.reference_blocks, result.totals, result.open_tokens, result)


class PartitionVerifier:
    """Mills one partition again, and compares."""

    def __init__(self, task: MillTask, stages: Stages, partition: int) -> None:
        self._chains = [_VerifiedChain(task, genesis, partition) for genesis in task.geneses]
        self.mill = PartitionMill(stages, [chain.mill for chain in self._chains])
        self._reference = replace(stages, engine=reference_of(stages.engine))
        self._sampler = Sampler(task.sample or ReferenceSample(0), f"{task.geneses[0].recipe.raw_topic}/{partition}")

    def take(self, records: Sequence[SourceRecord], _: Looked | None = None) -> None:
        """Mill and compare consecutive records."""
        for part, sampled in self._sampler.parts(records):
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
