"""Secrets in addresses, which are names of sources, ids, settings, and in what libraries say: shown as asterisks.

One rule for all places. `TokenMillError` and all output (`tokenmill.app.terminal`) pass it. What becomes a name is
redacted where it is made, for names are kept in notes, ids and files.
"""

import re
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "***"
ESCAPES: Final = 4
"""How many times over an address may be escaped, as one within another is."""
_WEB: Final = frozenset({"http", "https", "ftp", "ftps", "git", "ssh", "ws", "wss"})
"""Schemes by which a user alone is a secret as well: a token is written there."""
_ADDRESS: Final = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]{0,63}(?:://|(?i::%2f%2f|%3a%2f%2f))\S*", re.ASCII)
"""What may be an address: up to the next space, for what is behind it only matters where it is a secret."""
_LOGIN: Final = re.compile(
    r"(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]{0,63})://(?P<user>[^/?#\s\"'<>@:]*)(?P<more>:[^/?#\s\"'<>]*)?@", re.ASCII
)
_ODD_LOGIN: Final = re.compile(
    r"://(?P<user>[^/?#\s\"'<>@:\[]*):(?!\d*(?:[/?#\s\"'<>,]|$))[^\s\"'<>]{0,256}@", re.ASCII
)
"""One whose password has characters of an address in it. What is behind the colon is no port."""
_NAME: Final = re.compile(r"(?<![\w.%-])([\w.%-]+)[\"']?\s?[=:]\s?", re.ASCII)
"""Of a parameter of an address, of a connection string in it, or of a table in it."""
_VALUE: Final = re.compile(r"\{[^}]*\}?|\"[^\"]*\"?|'[^']*'?|[^&;#,\s\"'}]*")
_SECRET: Final = re.compile(
    r".*(?:passw|passphrase|pwd|secret|signature|credential|apikey|accesskey|accountkey|privatekey|sharedkey|masterkey"
    r"|encryptionkey|bearer|cookie).*|.*(?:token|sig|auth|pass|sas|jwt)|key|oauth.*|authorization.*|session(?:id|key)"
)
"""Names of parameters that hold a secret, in lower case without what is between words."""
LEAST_LETTERS: Final = 4
"""Of a secret that is looked for by itself: shorter ones are parts of any word."""
_PLAIN: Final = re.compile(
    r"(?i)(?<![\w-])([\w-]*?(?:password|passwd|pwd|secret|secret_?key|access_?key|api_?key|access_?token)=)"
    r"(?:\{[^}]+\}?|\"(?:[^\"\\]|\\.)+\"?|'(?:[^'\\]|\\.)+'?|[^\s;&,\"']+)"
)
"""Parameters outside of an address, by the names that nothing else has: drivers repeat connection strings."""


def redacted(text: str, address: str = "") -> str:
    """Return a text without secrets of addresses and connection strings, nor those of ``address`` wherever they are."""
    if "://" in text or "%" in text:
        text = _ADDRESS.sub(lambda found: _hidden(found[0], ESCAPES), text)
    secrets = _words(address) - _words(redacted(address)) if address else set()
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _PLAIN.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def _words(address: str) -> set[str]:
    """Return what an address is made of: what is between its own signs, and between signs of any kind."""
    found = re.split(r"[&;?=#{}/:@,\s\"']+", f"{address} {unquote(address)}")
    return {word for part in found for word in (part, *re.split(r"\W+", part)) if len(word) >= LEAST_LETTERS}


def holds_secret(address: str) -> bool:
    """Return whether there is something to hide in an address."""
    return redacted(address) != address


def _hidden(address: str, escapes: int) -> str:
    """Return an address without secrets, so many times unescaped as that shows some."""
    shown = _ODD_LOGIN.sub(rf"://\g<user>:{HIDDEN}@", _LOGIN.sub(_without_login, address))
    shown = _without_values(shown, shown.find("://") + 1)
    plain = unquote(shown) if escapes else shown
    return shown if plain == shown or (again := _hidden(plain, escapes - 1)) == plain else again


def _without_login(found: re.Match[str]) -> str:
    if found["scheme"].lower().partition("+")[0] in _WEB:
        return f"{found['scheme']}://{HIDDEN}@"
    return f"{found['scheme']}://{found['user']}:{HIDDEN}@" if found["more"] else found[0]


def _without_values(address: str, at: int) -> str:
    pieces, done = [], 0
    while found := _NAME.search(address, at):
        at = found.end()
        if _SECRET.fullmatch(re.sub(r"[^a-z]", "", unquote(found[1]).lower())):
            value = _VALUE.match(address, at)
            pieces += [address[done:at], HIDDEN]
            at = done = at if value is None else value.end()
    return "".join([*pieces, address[done:]])
