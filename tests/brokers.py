"""Local brokers as only tests need them: served in other protocols as well, and stopped for a while."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenmill.app.local.broker import HOST, SETTINGS, Broker, _free_ports


class OpenBroker(Broker):
    """A broker that is served in other protocols as well, each on a port of its own, as lasting as the others.

    Whom they trust and who may log in is for ``settings`` to say, which are Kafka's and win over ours.
    """

    def __init__(
        self,
        directory: Path,
        *,
        listeners: Sequence[str],
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port=port)
        missing = [name for name in map(_port_name, listeners) if name not in self._address]
        free = [port for port in _free_ports(len(missing) + 2) if port not in self._address.values()]
        self._address |= dict(zip(missing, free, strict=False))
        others = [f"{name}://{self.address(name)}" for name in listeners]
        clients = ",".join([f"PLAINTEXT://{self.bootstrap_servers}", *others])
        protocols = [SETTINGS["listener.security.protocol.map"], *(f"{name}:{name}" for name in listeners)]
        self._settings = {
            "listeners": f"{clients},CONTROLLER://{HOST}:{self._address['controller_port']}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": ",".join(protocols),
            **(settings or {}),
        }

    def address(self, listener: str) -> str:
        return f"{HOST}:{self._address[_port_name(listener)]}"


def pause(broker: Broker) -> None:
    """Stop the process with SIGSTOP: connections stay open and nothing answers."""
    if process := broker._process():
        process.signal(signal.SIGSTOP)


def resume(broker: Broker) -> None:
    if process := broker._process():
        process.signal(signal.SIGCONT)


def _port_name(listener: str) -> str:
    return f"{listener.lower()}_port"
