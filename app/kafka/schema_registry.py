"""The client of a schema registry with Confluent's HTTP interface; what was fetched is kept, for it never changes."""

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import structlog

from tokenmill.errors import RegistryError, SettingsError, missing_extra
from tokenmill.redaction import redacted

from ..milling.decoding import FORMATS, RegisteredSchema
from ..settings import Settings
from ..tasks import Backoff
from .security import password, ssl_context

ANSWER_SECONDS: Final = 10.0
"""A registry answers within milliseconds; after so long, another try is likelier to be answered than this one."""
NOT_THERE: Final = (40401, 40402, 40403)
"""Error codes: no such subject, version, schema. A wrong address gets a 404 with another code, or none. A tuple: what
an answer has for a code may have no hash."""
OK: Final = 200
MOST_REFERENCES: Final = 1000
"""Of one schema, those of its references included; a registry that names more is broken."""
DEEPEST_REFERENCES: Final = 100
"""References of references; registries check less than this."""
FIRST_PAUSE: Final = 0.5
"""Seconds before the second try; doubled each time ..."""
LONGEST_PAUSE: Final = 10.0
"""... up to this: a registry that comes back is noticed soon, and one that starts is not asked to death."""
COMMAND_SECONDS: Final = 30.0
"""How long a command tries at least: as long as a registry takes to be started again."""

log = structlog.get_logger(__name__)


class SchemaRegistry:
    """Fetches schemas; may be used from several threads."""

    def __init__(self, settings: Settings, retry_seconds: float = 0.0) -> None:
        """Read what the settings name; nothing is asked yet, and later for ``retry_seconds``, or once."""
        try:
            import httpx  # noqa: PLC0415 - of an extra
        except ModuleNotFoundError as error:
            raise SettingsError(f"a schema registry cannot be asked: {missing_extra('httpx')}") from error
        if settings.schema_registry_url is None:
            raise SettingsError("schema_registry_url is not set")
        self.url = settings.schema_registry_url
        self._httpx, self._retry_seconds = httpx, retry_seconds
        name = settings.schema_registry_username
        self._login = None if name is None else (name, password(settings, "schema_registry"))
        # whatever the address: nothing decides that it is not needed
        self._ssl_context = ssl_context(settings, "schema_registry_")
        self._known: dict[int, RegisteredSchema] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with that id and all that it refers to; raises RegistryError where it is not to be had."""
        deadline, backoff = time.monotonic() + self._retry_seconds, Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while number not in self._known:
            try:
                answer = self._ask(f"schemas/ids/{number}", f"schema {number}")
                self._known[number] = self._with_references(answer, f"schema {number}", {})
                log.info("schema fetched", id=number, kind=self._known[number].kind, registry=self.url)
            except RegistryError as error:
                left = deadline - time.monotonic()
                if error.definite or left <= 0:
                    raise
                log.warning("waiting for the schema registry", reason=str(error), seconds_left=round(left))
                time.sleep(min(backoff.next(), left))
        return self._known[number]

    def subjects(self, number: int) -> str:
        """Return the names of the subjects that have the schema, for people; nothing where that cannot be told now."""
        try:
            response = self._get(f"schemas/ids/{number}/subjects")
            names = response.json() if response.status_code == OK else None
        except (self._httpx.HTTPError, self._httpx.InvalidURL, ValueError):
            return ""
        return ", ".join(map(str, names[:3])) if isinstance(names, list) else ""

    def _with_references(
        self, answer: Mapping[str, Any], what: str, fetched: dict[str, RegisteredSchema], within: tuple[str, ...] = ()
    ) -> RegisteredSchema:
        if len(within) > DEEPEST_REFERENCES:
            raise ValueError(f"its references are nested deeper than {DEEPEST_REFERENCES}")
        references = []
        found = answer.get("references") or []
        for reference in found if isinstance(found, list) else [found]:
            match reference:
                case {"name": str(name), "subject": str(subject), "version": int(version)}:
                    pass
                case _:
                    raise self._no_answer(what, "it is not what registries answer")
            path = f"subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            if path in within:
                raise ValueError(f"version {version} of {subject} refers to itself")
            if path not in fetched:
                if len(fetched) >= MOST_REFERENCES:
                    raise self._no_answer(what, f"it refers to over {MOST_REFERENCES} others")
                referred = f"version {version} of {subject}, to which {what} refers,"
                fetched[path] = self._with_references(self._ask(path, referred), referred, fetched, (*within, path))
            references.append((name, fetched[path]))
        return RegisteredSchema(str(answer.get("schemaType") or "AVRO"), answer["schema"], tuple(references))

    def _get(self, path: str) -> Any:
        return self._httpx.get(  # a connection each time: the next schema may come in a month
            f"{self.url}/{path}",
            auth=self._login,
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
            timeout=ANSWER_SECONDS,
            verify=self._ssl_context,
            follow_redirects=False,  # a login is for this host alone
        )

    def _ask(self, path: str, what: str) -> Mapping[str, Any]:
        try:
            response = self._get(path)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise RegistryError(
                f"the schema registry {self.url} does not answer ({str(error) or type(error).__name__}): look "
                "after it, or set schema_registry_url"
            ) from error
        status = response.status_code
        if response.has_redirect_location:
            elsewhere = redacted(response.headers["location"])
            raise self._no_answer(what, f"it answers {status} and sends us to {elsewhere[:200]!r}", 300)
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and answer.get("error_code") in NOT_THERE:
            raise RegistryError(
                f"{what} is not in the schema registry {self.url}: restore it there, set the schema_registry_url of "
                "the producers' registry, or skip the records that name it (`tokenmill skip TOPIC --schema-id ID`)",
                definite=True,
            )
        if status != OK:
            raise self._no_answer(what, f"it answers {status} {response.reason_phrase}", status)
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise self._no_answer(what, "it is not what registries answer")
        return answer

    def _no_answer(self, what: str, why: str, status: int = 0) -> RegistryError:
        advice = {
            401: "set schema_registry_username and schema_registry_password_file",
            403: "give the login the right to read schemas",
            300: "set schema_registry_url to the registry's own address",
            404: "the address is not a registry's; with Apicurio it ends in /apis/ccompat/v7",
        }.get(status, "look after it")
        return RegistryError(f"the schema registry {self.url} cannot be asked for {what} ({why}): {advice}")


def schemas_of(settings: Settings, decode: str, retry_seconds: float = 0.0) -> SchemaRegistry | None:
    """Return the registry that ``decode`` needs; None where it needs none, or where none is set."""
    if decode not in FORMATS or settings.schema_registry_url is None:
        return None
    return SchemaRegistry(settings, retry_seconds)


def schemas_for_command(settings: Settings, decode: str) -> SchemaRegistry | None:
    """Do as `schemas_of`, for a command: it waits for `COMMAND_SECONDS`, or longer if ``wait_seconds`` is."""
    return schemas_of(settings, decode, max(COMMAND_SECONDS, settings.wait_seconds))
