"""A real broker that wants logins and certificates, and everything that its clients need.

It listens with all four of Kafka's security protocols. SASL_PLAINTEXT and SASL_SSL let `USER` in by PLAIN,
SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; SSL wants a certificate of the client's that the authority vouches for.
"""

import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import _scram as scram
from cryptography.hazmat.primitives import serialization

from tests.brokers import OpenBroker
from tests.marked import until
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

USER: Final = "miller"
GUEST: Final = "guest"
"""May do everything too, once somebody adds it."""
PASSWORD: Final = 'gr1st, "hidden" \\ from=all'  # noqa: S105 - of a broker that lives as long as a test
"""With what quoting gets wrong."""
NEEDLE: Final = "gr1st"
"""The part of it to look for where no password belongs: spelt the same however the rest is quoted."""
KEY_PASSWORD: Final = "bran-and-germ"  # noqa: S105
LISTENERS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MODULES: Final = {
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
}
SCRAM: Final = (scram.ScramMechanism.SCRAM_SHA_256, scram.ScramMechanism.SCRAM_SHA_512)


@dataclass(frozen=True)
class Secured:
    broker: OpenBroker
    directory: Path

    @property
    def password_file(self) -> Path:
        """The password, as containers mount it, with a line end."""
        return self.directory / "password"

    def values(self, protocol: str, **others: Any) -> dict[str, Any]:
        values: dict[str, Any] = {"bootstrap_servers": self.broker.address(protocol), "security_protocol": protocol}
        if protocol.startswith("SASL_"):
            values |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER, "sasl_password": PASSWORD}
        if protocol.endswith("SSL"):
            values |= {"ssl_cafile": self.directory / "ca.pem"}
        if protocol == "SSL":
            files = {"ssl_certfile": self.directory / "client.pem", "ssl_keyfile": self.directory / "client.key"}
            values |= {**files, "ssl_keyfile_password": KEY_PASSWORD}
        return {name: value for name, value in (values | others).items() if value is not None}

    def settings(self, protocol: str, **others: Any) -> Settings:
        return Settings(**self.values(protocol, **others))


@contextmanager
def secured_broker(directory: Path) -> Iterator[Secured]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "other-ca.pem"))
    client = authority.issue_cert("client.example")
    client.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
    (directory / "client.key").write_text(_key(client, serialization.BestAvailableEncryption(KEY_PASSWORD.encode())))
    (directory / "password").write_text(f"{PASSWORD}\n")
    with OpenBroker(directory / "broker", settings=_properties(authority), listeners=LISTENERS) as broker:
        add_user(broker, USER)
        yield Secured(broker, directory)


def certified(authority: trustme.CA) -> dict[str, str]:
    server = authority.issue_cert("127.0.0.1")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "".join(pem.bytes().decode() for pem in server.cert_chain_pems),
        "ssl.keystore.key": _key(server, serialization.NoEncryption()),
    }


def _properties(authority: trustme.CA) -> dict[str, str]:
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    properties = {
        **certified(authority),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.cert_pem.bytes().decode(),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        # Rights are checked for all but those that tests of logins log in as; plain text and certificates are theirs.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:{GUEST}",
        "listener.name.ssl.ssl.principal.mapping.rules": f"RULE:^.*$/{USER}/",
    }
    plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{quoted}";'
    for listener in ("sasl_plaintext", "sasl_ssl"):
        for mechanism in MECHANISMS:
            name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            properties[name] = MODULES.get(mechanism, plain)
    return properties


def _key(certificate: trustme.LeafCert, encryption: serialization.KeySerializationEncryption) -> str:
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


def add_user(broker: OpenBroker, name: str) -> None:
    """Let somebody log in by SCRAM, with `PASSWORD`; a busy broker knows some time after it has said so."""
    for kind in SCRAM:  # a request changes a user once
        info = scram.ScramCredentialInfo(kind, 4096)
        _alter(broker, scram.UserScramCredentialUpsertion(name, info, PASSWORD.encode()))
    assert until(lambda: _is_let_in(broker, name), 30.0)


def login(broker: OpenBroker, name: str) -> dict[str, Any]:
    address = {"bootstrap.servers": broker.address("SASL_PLAINTEXT"), "security.protocol": "SASL_PLAINTEXT"}
    return {**address, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": name, "sasl.password": PASSWORD}


def _is_let_in(broker: OpenBroker, name: str) -> bool:
    try:
        return AdminClient(login(broker, name) | {"log_level": 0}).list_topics(timeout=2.0) is not None
    except KafkaException:
        return False


def remove_user(broker: Broker, name: str) -> None:
    for kind in SCRAM:
        _alter(broker, scram.UserScramCredentialDeletion(name, kind))


def _alter(broker: Broker, change: scram.UserScramCredentialUpsertion | scram.UserScramCredentialDeletion) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result()


class TokenEndpoint:
    """A token endpoint for client credentials (RFC 6749): unsigned JWS for `USER`, from `PASSWORD`.

    Brokers believe these where nobody sets another validator, for tests alone.
    """

    def __init__(self, *, seconds: float = 3600.0) -> None:
        self.seconds = seconds
        self.status = 200
        self.asked: list[str] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = endpoint._answer(form, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)

    @property
    def values(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._server.server_port}/token"
        return {"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": url, "oauth_scope": "mill"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, form: str, login: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(form)
        if self.status != HTTPStatus.OK:
            return self.status, {"error": "temporarily_unavailable"}
        if login != f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}":
            return 401, {"error": "invalid_client"}
        return 200, {"access_token": unsigned_token(USER, self.seconds), "expires_in": self.seconds}


def unsigned_token(user: str, seconds: float) -> str:
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + seconds})
    return ".".join([*(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])
