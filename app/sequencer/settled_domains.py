"""The domains of streams that are settled: what geneses and the topics of slices say of them, and no settings."""

from collections.abc import Sequence
from contextlib import suppress

import orjson
from aiokafka import TopicPartition

from tokenmill.errors import FingerprintError, TopicError

from ..kafka.clients import consumer, offsets, read_range
from ..kafka.control_topic import Settled, require_topic
from ..kafka.settled_streams import settled_streams
from ..settings import Domain, Settings
from .domain_messages import DOMAIN_KEY, domain_record


def domain_name(settled: Settled) -> str:
    """Return the name of the domain in which duplicates of a stream's documents are looked for; "": in none."""
    recipe, name = settled.genesis.recipe, settled.stream.name
    suffix = name.removeprefix(f"{recipe.raw_topic}.{recipe.split}")
    return f"{recipe.dedup.get('domain', recipe.raw_topic)}{suffix}" if recipe.dedup else ""


async def settled_domain(settings: Settings, settled: Settled) -> Domain:
    """Return the domain of a stream, as the first record on the domain's topic of slices has it.

    Raises TopicError where no sequencer has written it yet; and FingerprintError where it has other parameters than the
    stream, or not its raw topic.
    """
    recipe, name = settled.genesis.recipe, domain_name(settled)
    suffix = settled.stream.name.removeprefix(f"{recipe.raw_topic}.{recipe.split}")
    domain = Domain(name, (recipe.raw_topic,), suffix, recipe.dedup)
    slices = TopicPartition(domain.slices_topic, 0)
    async with consumer(settings) as client:
        await require_topic(client, slices.topic)
        async for record in read_range(client, slices, *(await offsets(client, [slices]))[slices]):
            if record.key == DOMAIN_KEY:
                try:
                    found = domain._replace(raw_topics=tuple(orjson.loads(record.value or b"")["raw_topics"]))
                except (ValueError, KeyError, TypeError):
                    found = domain
                if domain_record(found) != record.value or recipe.raw_topic not in found.raw_topics:
                    raise FingerprintError(
                        f"domain {name} was settled with {bytes(record.value or b'').decode(errors='replace')}, and "
                        f"{settled.stream.name} with the dedup {dict(recipe.dedup)}: they do not belong together"
                    )
                return found
    raise TopicError(f"{slices.topic} does not say yet what domain {name} is: start a sequencer, `tokenmill serve`")


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
