"""Which machines a remote address of a workflow may lead to.

A workflow is a file from a stranger, and this machine and its network are none of its business: loopback,
private and other addresses that are not public are reached only where the person has allowed the host. An
address is looked at where it is read, a name when it is looked up, and a redirect like a first request.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cascade_train.errors import CascadeError

_ALLOW = (
    "Name a public host, or allow this one (headless: --allow-host {}; ComfyUI: CASCADE_TRAIN_ALLOW_HOST)"
)


class NotAllowed(CascadeError):
    """A remote address leads to a machine that the person has not allowed."""

    def __init__(self, host: str, leads_to: str = "") -> None:
        more = f" ({leads_to})" if leads_to and leads_to != host else ""
        super().__init__(
            f"'{host}'{more} is this machine or one of a private network, where a workflow may not look",
            fix=_ALLOW.format(host),
        )


def is_public(address: str) -> bool:
    """Whether an IP address (v4, v6, v4 within v6) is one of the public internet."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    found = inner or found
    return found.is_global and not found.is_multicast


def check_host(host: str, allowed: Sequence[str]) -> None:
    """Raises:
    NotAllowed: ``host`` is an address that is not public or a name of this machine, and is not ``allowed``.
        Other names are looked at when they are looked up.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name in _names(allowed):
        return
    if name == "localhost" or name.endswith(".localhost"):
        raise NotAllowed(name)
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return
    if not is_public(name):
        raise NotAllowed(name)


def check_url(url: str, allowed: Sequence[str]) -> None:
    """Raises:
    CascadeError: ``url`` is no remote address (``scheme://…``), one inside another (``::``), or, over http,
        one that names a host that `check_host` refuses.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not rest.strip("/"):
        raise CascadeError(f"'{url}' is no remote address", fix=f"Write {scheme.partition(':')[0]}://…")
    if "::" in url:  # fsspec would open one address through another, or a file of this machine
        raise CascadeError(f"'{url}' names one address inside another", fix="Name the tar itself")
    if not url.isprintable():
        raise CascadeError(f"{url!r} holds characters that no address can have", fix="Write it anew")
    if scheme.lower() in ("http", "https"):
        host = host_of(url)
        if not host:
            raise CascadeError(f"'{url}' names no host", fix=f"Write {scheme}://host/path.tar")
        check_host(host, allowed)


def host_of(url: str) -> str:
    """The host that an http(s) address names; "" for anything else."""
    try:
        return urlsplit(url).hostname or "" if url.lower().startswith(("http://", "https://")) else ""
    except ValueError:
        return ""


def _names(allowed: Sequence[str]) -> set[str]:
    bare = (name.strip().partition(":")[0] if name.count(":") == 1 else name.strip() for name in allowed)
    return {name.strip("[]").rstrip(".").lower() for name in bare}


@dataclass(frozen=True)
class Client:
    """Makes the sessions of fsspec's HTTP file system: only to hosts that are public or ``allowed``.

    The addresses that are looked at are those that are connected to, so that a name cannot mean another one
    a moment later. Equal clients are equal for fsspec, which keeps file systems by their arguments.
    """

    allowed: tuple[str, ...] = ()

    async def __call__(self, **settings: Any) -> Any:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._started)
        trace.on_request_redirect.append(self._redirected)
        connector = aiohttp.TCPConnector(resolver=_resolver(self.allowed))
        return aiohttp.ClientSession(connector=connector, trace_configs=[trace], **settings)

    async def _started(self, session: Any, context: Any, request: Any) -> None:
        check_host(request.url.host or "", self.allowed)

    async def _redirected(self, session: Any, context: Any, answer: Any) -> None:
        headers = answer.response.headers
        to = headers.get("Location") or headers.get("URI") or ""
        target = answer.response.url.join(type(answer.response.url)(to))
        if target.scheme not in ("http", "https"):
            raise CascadeError(f"'{answer.response.url}' leads to '{target}', which is not read")
        check_host(target.host or "", self.allowed)


def _resolver(allowed: tuple[str, ...]) -> Any:
    """What aiohttp looks names up with; it drops the addresses that may not be reached."""
    from aiohttp.abc import AbstractResolver
    from aiohttp.resolver import ThreadedResolver

    class Guarded(AbstractResolver):
        def __init__(self) -> None:
            self._inner = ThreadedResolver()

        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
            found = await self._inner.resolve(host, port, family)
            if host.rstrip(".").lower() in _names(allowed):
                return found
            public = [each for each in found if is_public(each["host"])]
            if found and not public:
                raise NotAllowed(host, found[0]["host"])
            return public

        async def close(self) -> None:
            await self._inner.close()

    return Guarded()
