"""Settled domains: the first record on a domain's topic of slices decides, also for those who have no settings."""

from collections.abc import Sequence
from contextlib import suppress

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import FingerprintError, TopicError

from ..kafka.clients import consumer, read_partition
from ..kafka.control_topic import Settled, require_topic, settled_streams, write_control
from ..settings import Domain, Settings
from .domain_messages import DOMAIN_KEY, domain_record


async def _recorded(client: AIOKafkaConsumer, domain: Domain) -> bytes | None:
    """Return what decides the verdicts of a domain, as the first record on its topic of slices has it; None before."""
    async for record in read_partition(client, TopicPartition(domain.slices_topic, 0)):
        if record.key == DOMAIN_KEY:
            return bytes(record.value or b"")
    return None


async def settle_domain(settings: Settings, domain: Domain) -> None:
    """Return when what decides the verdicts is the first record on the domain's topic of slices.

    Raises FingerprintError where the domain was settled with other settings.
    """
    async with consumer(settings) as client:
        while (found := await _recorded(client, domain)) is None:
            await write_control(settings, domain.slices_topic, [(DOMAIN_KEY, domain_record(domain))])
    if found != domain_record(domain):
        raise FingerprintError(
            f"domain {domain.name} was settled with {found.decode(errors='replace')}, and the settings say "
            f"{domain_record(domain).decode()}: set them back, or begin a new domain with a new stream_suffix"
        )


def domain_name(settled: Settled) -> str:
    """Return the name of the domain in which duplicates of a stream's documents are looked for; "": in none."""
    recipe = settled.genesis.recipe
    return f"{recipe.dedup.get('domain', recipe.raw_topic)}{settled.stream.suffix}" if recipe.dedup else ""


async def settled_domain(settings: Settings, settled: Settled) -> Domain:
    """Return the domain of a stream, as the first record on the domain's topic of slices has it.

    Raises TopicError where no sequencer has written it yet; and FingerprintError where it has other parameters than the
    stream, or not its raw topic.
    """
    recipe, name = settled.genesis.recipe, domain_name(settled)
    domain = Domain(name, (recipe.raw_topic,), settled.stream.suffix, recipe.dedup)
    async with consumer(settings) as client:
        await require_topic(client, domain.slices_topic)
        found = await _recorded(client, domain)
    if found is None:
        raise TopicError(
            f"{domain.slices_topic} does not say yet what domain {name} is: start a sequencer, `tokenmill serve`"
        )
    with suppress(ValueError, KeyError, TypeError):
        domain = domain._replace(raw_topics=tuple(orjson.loads(found)["raw_topics"]))
    if domain_record(domain) != found or recipe.raw_topic not in domain.raw_topics:
        raise FingerprintError(
            f"domain {name} was settled with {found.decode(errors='replace')}, and {settled.stream.name} with the "
            f"dedup {dict(recipe.dedup)}: they do not belong together"
        )
    return domain


async def settled_domains(settings: Settings, raw_topics: Sequence[str]) -> list[Domain]:
    """Return the domains of all streams of some raw topics, by name; those that are not settled are left out.

    Raises TopicError where no stream of these raw topics is settled; and as `settled_domain`.
    """
    streams = await settled_streams(settings.model_copy(update={"raw_topics": tuple(raw_topics)}))
    named, found = {name: settled for settled in streams if (name := domain_name(settled))}, []
    for name in sorted(named):
        with suppress(TopicError):
            found.append(await settled_domain(settings, named[name]))
    return found
