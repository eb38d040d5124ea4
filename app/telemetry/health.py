"""Whether the service of this container is well: ``python -m tokenmill.app.telemetry.health`` asks its ``/healthz``.

For container engines, which ask every few seconds: the standard library alone, because a command line with all its
settings would take ten times as long to start as the question takes.
"""

import os
import ssl
import sys
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

PORT_VARIABLE: Final = "TOKENMILL_METRICS_PORT"
TLS_VARIABLE: Final = "TOKENMILL_HTTP_TLS_CERTIFICATE"
DEFAULT_PORT: Final = 9464
"""As the setting ``metrics_port`` has it."""
SECONDS: Final = 3.0
"""Below the time after which the engine gives up on the answer."""
MOST_BYTES: Final = 2000
"""Of the answer, which engines keep."""


def believing(certificate: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return what believes whom the system does, or a certificate's owner alone; raises OSError: it is unreadable."""
    context = ssl.create_default_context(cafile=certificate)
    if certificate is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def ask(url: str, certificate: str | None = None) -> tuple[bool, str]:
    """Return whether the answer is 200, and what it says, or why there is none."""
    try:
        https = [HTTPSHandler(context=believing(certificate))] if certificate else []  # to read authorities takes long
        with build_opener(ProxyHandler({}), *https).open(url, timeout=SECONDS) as answer:
            return True, answer.read(MOST_BYTES).decode("utf-8", "replace")
    except HTTPError as error:
        return False, f"{error.code}: {error.read(MOST_BYTES).decode('utf-8', 'replace')}"
    except OSError as error:
        return False, f"{url} does not answer: {error}"


def main() -> None:
    """Print what the service says of itself; exit with 0 if it is well, else 1."""
    port = os.environ.get(PORT_VARIABLE) or DEFAULT_PORT
    certificate = os.environ.get(TLS_VARIABLE) or None
    well, words = ask(f"{'https' if certificate else 'http'}://127.0.0.1:{port}/healthz", certificate)
    print(words.strip())  # noqa: T201 - engines keep it
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
