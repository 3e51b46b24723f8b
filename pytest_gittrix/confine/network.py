"""Names the network that a confined program has: none, the machine's, or a list of model endpoints and of addresses.

A list leaves the program a loopback of its own, where one gateway listens. ``gateway`` is that, and ``docs/reference/confinement.md``
tells what it passes on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pytest_gittrix.confine.gateway.requests import PRIVATE, TCP
from pytest_gittrix.confine.gateway.server import KEYS, PORT
from pytest_gittrix.errors import Advice, InvalidInput

PLACEHOLDER: Final = "the-key-is-added-outside"
"""What a program gets in place of a model's key, since clients refuse to start without one."""

_ENTRY: Final = re.compile(
    r"(?:private:)?(?:tcp://)?(?:\*\.)?(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?:[0-9]{1,5}", re.ASCII
)
_LOOPBACK: Final = re.compile(r"(?:tcp://)?(?:localhost|127(?:\.[0-9]+){1,3}):(?P<port>[0-9]+)")
_MODEL: Final = "model:"
_REQUEST: Final = re.compile(r"[A-Z]+ /[A-Za-z0-9._~/:-]*\*?")


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model's server, as confined programs reach it: by plain HTTP on their loopback, without its key.

    The gateway adds the key outside of the confinement, and passes on the listed requests only.

    Attributes:
        name: of lower-case letters, digits and ``-``; the address of the endpoint ends with it.
        url: the server's base address, ``https://`` or, for a server on this machine, ``http://``.
        requests: what is passed on, such as ``POST /v1/messages``; a path is compared as a whole, without its query; one that ends
            with ``*`` is the beginning of what is passed on.
        key: the variable of the launcher's process that holds the key; None if the server asks for none. Programs get a placeholder in it.
        header: the header that carries the key, with ``{key}`` in its place.
        variables: the variables that programs get, with ``{url}`` for the endpoint's address.
        ca: a file of certificates to trust instead of the system's, or of the one that ``SSL_CERT_FILE`` names.
        by_session: whether the server tells sessions apart by ``/session/ID`` before what is asked for.

    Raises:
        InvalidInput: a value is not allowed.
    """

    name: str
    url: str
    requests: tuple[str, ...]
    key: str | None = None
    header: str = "Authorization: Bearer {key}"
    variables: tuple[tuple[str, str], ...] = ()
    ca: str | None = None
    by_session: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if not re.fullmatch(r"[a-z0-9-]+", self.name):
            raise InvalidInput(f"{self.name!r} is no name of an endpoint.", fix="Use lower-case letters, digits and '-'.")
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
            raise InvalidInput(
                f"url={self.url!r} is no base address of a model's server.", fix="Give one such as https://api.example.org, without a key."
            )
        if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1"):
            raise InvalidInput(
                f"url={self.url!r} is not encrypted.", why="The key would cross the network in the clear.", fix="Use https://."
            )
        for one in self.requests:
            if not _REQUEST.fullmatch(one) or ".." in one:
                raise InvalidInput(f"{one!r} is no request.", fix='Give a method and a path, such as "POST /v1/messages".')
        if not re.fullmatch(r"[A-Za-z0-9-]+: ?[\x20-\x7e]*\{key\}[\x20-\x7e]*", self.header):
            raise InvalidInput(f"header={self.header!r} carries no key.", fix='Give one such as "x-api-key: {key}".')

    def rules(self) -> dict[str, Any]:
        """The endpoint as the gateway reads it."""
        parts = urlsplit(self.url)
        return {
            "name": self.name,
            "tls": parts.scheme == "https",
            "host": parts.hostname,
            "port": parts.port or (443 if parts.scheme == "https" else 80),
            "netloc": parts.netloc,
            "base": parts.path.rstrip("/"),
            "requests": [*self.requests],
            "key": self.key,
            "header": self.header,
            "ca": self.ca or os.environ.get("SSL_CERT_FILE"),
        }


MODELS: Final = {
    "anthropic": ModelEndpoint(
        "anthropic",
        "https://api.anthropic.com",
        ("POST /v1/messages", "POST /v1/messages/count_tokens", "GET /v1/models"),
        key="ANTHROPIC_API_KEY",
        header="x-api-key: {key}",
        variables=(("ANTHROPIC_BASE_URL", "{url}"),),
    ),
    "openai": ModelEndpoint(
        "openai",
        "https://api.openai.com",
        ("POST /v1/responses", "POST /v1/chat/completions", "POST /v1/embeddings", "GET /v1/models"),
        key="OPENAI_API_KEY",
        variables=(("OPENAI_BASE_URL", "{url}/v1"),),
    ),
    "gemini": ModelEndpoint(
        "gemini",
        "https://generativelanguage.googleapis.com",
        ("POST /v1beta/models/*", "GET /v1beta/models*"),
        key="GEMINI_API_KEY",
        header="x-goog-api-key: {key}",
        variables=(("GOOGLE_GEMINI_BASE_URL", "{url}"),),
    ),
}
"""The endpoints that are had by name, as ``model:anthropic``. Where this process has the variable of one, its server is the one that it
names."""


@dataclass(frozen=True, slots=True)
class Reachable:
    """A list of what a confined program reaches; made by ``check_network``.

    Attributes:
        models: endpoints of models.
        addresses: ``host:port`` for TLS, ``*.host:port`` for what is below a host, ``tcp://host:port`` for anything else; behind
            ``private:`` if the host may be on a private network, or this machine.
    """

    models: tuple[ModelEndpoint, ...]
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([*(f"{_MODEL}{one.name}" for one in self.models), *self.addresses])

    def rules(self) -> dict[str, Any]:
        """The list as the gateway reads it."""
        return {"models": [one.rules() for one in self.models], "addresses": [*self.addresses]}

    def variables(self) -> dict[str, str]:
        """The variables of programs: the addresses of endpoints, placeholders of keys, and where the proxy is."""
        gateway = f"http://127.0.0.1:{PORT}"
        variables = {name: value.format(url=f"{gateway}/{one.name}") for one in self.models for name, value in one.variables}
        variables |= {one.key: PLACEHOLDER for one in self.models if one.key is not None}
        if self.addresses:
            variables |= {name: gateway for upper in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY") for name in (upper, upper.lower())}
            variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")
            variables["NODE_USE_ENV_PROXY"] = "1"
        return variables

    def keys(self) -> dict[str, str]:
        """A variable for whoever confines, which holds the keys of the endpoints.

        Raises:
            InvalidInput: this process has no such key, or one that no header can carry.
        """
        found: dict[str, str] = {}
        for one in self.models:
            if one.key is None:
                continue
            found[one.key] = os.environ.get(one.key, "")
            if not re.fullmatch(r"[\x21-\x7e]+", found[one.key]):
                raise InvalidInput(
                    f"{one.key} is not set, or holds more than one word.",
                    why=f"The agent's calls to {one.url} need it; it is added outside of the confinement.",
                    fix=f"Set {one.key} for the process that launches the agent.",
                    opt_out=f"Leave {_MODEL}{one.name} out of network.",
                )
        return {KEYS: json.dumps(found)}


Network = Literal["none", "all"] | Reachable
"""Which network a confined program has: none but a loopback of its own, the machine's, or a list of what it reaches."""


def check_network(network: object) -> Network:
    """Validate which network a program has.

    Args:
        network: ``none``, ``all``, a ``ModelEndpoint`` or what has one as its ``endpoint``, an entry, or several of those. An entry is
            ``model:anthropic``, ``model:openai``, ``model:gemini``, ``host:port``, ``*.host:port`` or ``tcp://host:port``; behind
            ``private:`` a host, not a pattern, that is on a private network.

    Raises:
        InvalidInput: it is none of these.
    """
    if network == "none":
        return "none"
    if network == "all":
        return "all"
    if isinstance(network, Reachable):
        return network
    entries = [network] if isinstance(network, (str, ModelEndpoint)) or not isinstance(network, Iterable) else [*network]
    models, addresses = [], []
    for entry in (getattr(one, "endpoint", one) for one in entries):
        if isinstance(entry, ModelEndpoint):
            models.append(entry)
        elif isinstance(entry, str) and entry.startswith(_MODEL) and entry.removeprefix(_MODEL) in MODELS:
            models.append(_as_configured(MODELS[entry.removeprefix(_MODEL)]))
        elif isinstance(entry, str) and _is_entry(entry.lower()):
            _refuse_loopback(entry)
            addresses.append(entry.lower())
        else:
            raise InvalidInput(
                f"network={entry!r} is no network of a confined program.",
                why="It decides whom the program can reach.",
                fix=f"Use one of none, all, {', '.join(_MODEL + name for name in MODELS)}, host:port, *.host:port, {TCP}host:port, "
                f"{PRIVATE}host:port; or a list of the last seven, and of ModelEndpoint.",
            )
    if len({one.name for one in models}) < len(models):
        raise InvalidInput(
            "Two endpoints of network have one name.", why="Their addresses would be the same.", fix="Name each differently."
        )
    return Reachable(tuple(models), tuple(addresses)) if entries else "none"


def for_session(network: object, id_: str) -> object:
    """A network as the programs of one session get it: a model that tells sessions apart has an endpoint for each.

    Args:
        network: as for ``check_network``.
        id_: the session.
    """
    if isinstance(network, Reachable):
        return replace(network, models=tuple(_of_session(one, id_) for one in network.models))
    if isinstance(network, (str, ModelEndpoint)) or not isinstance(network, Iterable):
        return _of_session(network, id_)
    return [_of_session(one, id_) for one in network]


def _of_session(entry: Any, id_: str) -> Any:
    found = getattr(entry, "endpoint", entry)
    if not isinstance(found, ModelEndpoint) or not found.by_session:
        return entry
    return replace(found, url=f"{found.url}/session/{id_}", by_session=False)


def _is_entry(entry: str) -> bool:
    pattern_of_private = entry.startswith(PRIVATE) and "*" in entry  # whoever owns a name below it would choose among our machines
    return bool(_ENTRY.fullmatch(entry)) and 0 < int(entry.rpartition(":")[2]) < 1 << 16 and not pattern_of_private


def _refuse_loopback(entry: str) -> None:
    """Raise InvalidInput for an entry that names the loopback of this machine, unless it says ``private:``."""
    found = _LOOPBACK.fullmatch(entry.lower())
    if found is None:
        return
    server = f"127.0.0.1:{found['port']}"
    raise InvalidInput(
        f"network={entry!r} is a server of this machine, and a confined program does not get there by that name.",
        why="localhost is the program's own, and clients ask no proxy for it.",
        fix=Advice(
            f'For a model, give ModelEndpoint("mine", "http://{server}", ("POST /v1/chat/completions",)); for another server, give a jail '
            'its Unix socket (sockets=), or network="all".',
            f"For a model, set the variable of its address, such as ANTHROPIC_BASE_URL=http://{server}, and list model:anthropic.",
        ),
        opt_out=f"{PRIVATE}localhost:{found['port']} lists it for a program that asks the proxy for localhost, too (NO_PROXY= without it).",
    )


def _as_configured(model: ModelEndpoint) -> ModelEndpoint:
    for name, value in model.variables:
        if url := os.environ.get(name):
            return replace(model, url=url.rstrip("/").removesuffix(value.removeprefix("{url}")))
    return model
