"""How far a run of produce is, for Prometheus."""

import socket

import pytest
from pydantic import SecretStr

from tests.scraping import ask, free_port, parse, total
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.produce_metrics import run_served
from tokenmill.app.tools.produce.sender import Acknowledged
from tokenmill.app.tools.produce.summary import Summary
from tokenmill.errors import InputError


def test_a_run_serves_its_figures_while_it_lasts() -> None:
    """None before it has begun; then those of the moment, of all partitions."""
    port, begun = free_port(), list[Summary]()
    with run_served(Settings(), port, lambda: begun[0] if begun else None):
        assert total(parse(ask(port, "/metrics").text), "tokenmill_produced_documents_total") == 0
        begun.append(Summary("t", {0: Acknowledged(3, 30), 1: Acknowledged(4, 50)}, refused=2, bytes_read=99))
        for documents in (7, 8):
            found = parse(ask(port, "/metrics").text)
            names = ("documents", "bytes", "refused", "read_bytes")
            figures = [total(found, f"tokenmill_produced_{name}_total", topic="t") for name in names]
            assert figures == [documents, 80, 2, 99]
            begun[0].partitions[1].documents += 1
        assert ask(port, "/").code == 404
    socket.create_server(("127.0.0.1", port)).close()  # the address is free


def test_they_are_for_who_has_the_token() -> None:
    """As those of a service."""
    port = free_port()
    with run_served(Settings(http_token=SecretStr("t")), port, lambda: None):
        assert ask(port, "/metrics").code == 401


def test_a_port_that_is_taken_ends_the_command_and_port_0_serves_nothing() -> None:
    """Who asked for metrics has them."""
    port = free_port()
    with (
        run_served(Settings(), port, lambda: None),
        pytest.raises(InputError, match="give another --metrics-port"),
        run_served(Settings(), port, lambda: None),
    ):
        pytest.fail("it serves")
    with run_served(Settings(metrics_host="no such host"), None, lambda: None):
        pass
