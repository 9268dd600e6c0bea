"""AcmeClient: orders certificates over HTTP-01 (RFC 8555), with renewal information (RFC 9773)."""

import asyncio
import base64
import json
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mandor.acme.account import StoredAccount
from mandor.acme.base import (
    CONNECTION,
    NO_ACCOUNT,
    RATE_LIMITED,
    SERVER,
    AcmeOrder,
    AcmeProblem,
    CertificateIssuer,
    Challenge,
    RenewalWindow,
)
from mandor.acme.jws import AccountKey, base64url, certificate_id
from mandor.acme.transport import Answer, Transport, retry_after
from mandor.lib.clock import Clock

NONCES_MOST = 16
BAD_NONCES_MOST = 20
"""Attempts with a new nonce after the authority rejected one."""
POLL_SECONDS, POLL_SECONDS_MOST = 1.0, 15.0
"""Seconds between two looks at an order."""
WAIT_SECONDS = 180.0
"""Seconds in which the authority checks the challenges, or issues."""
AUTHORIZATIONS_MOST = 8
WINDOW_SECONDS, WINDOW_SECONDS_LEAST, WINDOW_SECONDS_MOST = 6 * 3600.0, 600.0, 86_400.0
"""Seconds until a renewal window is read again: usually, and the limits of what the authority asks for."""
_PEM = "application/pem-certificate-chain"
_PREFIX = "urn:ietf:params:acme:error:"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")
_PASSING = frozenset({CONNECTION, SERVER, RATE_LIMITED, NO_ACCOUNT})
"""Types of problems that are about the authority or the account, not about one order."""
_OPEN = frozenset({"pending", "ready", "processing", "valid"})


@dataclass(frozen=True, slots=True)
class AccountTerms:
    """How an account is registered."""

    email: str = ""
    agreed: bool = False
    """Whether the administrator agrees to the terms of the authority."""
    binding_id: str = ""
    binding_key: str = ""
    """External account binding, for authorities that know their customers."""


class AcmeClient(CertificateIssuer):
    """One account. The account is registered with the first order, and again if the authority does not know it."""

    def __init__(
        self,
        directory: str,
        stored: StoredAccount,
        terms: AccountTerms,
        transport: Transport,
        clock: Clock,
    ) -> None:
        self._directory_url, self._stored, self._terms = directory, stored, terms
        self._transport, self._clock = transport, clock
        self._key: AccountKey | None = None
        self._account = self._email = ""
        """URL of the account and its registered address; empty: not registered yet."""
        self._registering = asyncio.Lock()
        self._directory: dict[str, Any] = {}
        self._nonces: list[str] = []

    async def order(self, host: str, known: str = "", replaces: str = "") -> AcmeOrder:
        await self._register()
        account = self._account
        try:
            return await self._ordered(host, known, replaces)
        except AcmeProblem as problem:
            if problem.type != NO_ACCOUNT:
                raise
        async with self._registering:
            if self._account == account:
                self._account = ""  # the authority has lost it
            await self._ensure_account()
        return await self._ordered(host, "", replaces)

    async def serves(self, host: str, challenge: Challenge) -> bool | None:
        found = await self._transport.file(host, challenge.token)
        return None if found is None else found.strip() == challenge.answer.encode()

    async def validate(self, order: AcmeOrder) -> AcmeOrder:
        for each in order.challenges:
            await self._post(each.url, {})
        return await self._until(order, "pending")

    async def complete(self, order: AcmeOrder, request: str) -> str:
        if order.status == "ready":
            await self._post(order.finalize, {"csr": _unpadded(request)})
            order = await self._until(order, "ready", "processing")
        elif order.status == "processing":
            order = await self._until(order, "processing")
        if order.status != "valid" or not order.certificate:
            raise AcmeProblem(SERVER, f"the order has the status {order.status[:40]!r} and no certificate")
        answer = await self._post(order.certificate, None, accept=_PEM)
        return answer.body.decode("ascii", "replace")

    async def window(self, certificate: str) -> RenewalWindow | None:
        base = (await self._read_directory()).get("renewalInfo")
        name = certificate_id(certificate)
        if not base or not name:
            return None
        answer = await self._transport.send("GET", f"{_text(base)}/{name}")
        if answer.status != 200:
            return None  # for example, the certificate is from another authority
        suggested = _field(_document(answer), "suggestedWindow", dict)
        start, end = (_moment(_field(suggested, each, str)) for each in ("start", "end"))
        pause = retry_after(answer.headers, self._clock.now())
        pause = WINDOW_SECONDS if pause is None else min(max(pause, WINDOW_SECONDS_LEAST), WINDOW_SECONDS_MOST)
        return RenewalWindow(start, max(start, end), pause)

    @property
    def _signer(self) -> AccountKey:
        assert self._key is not None, "every order begins with the account"
        return self._key

    # The account.

    async def _register(self) -> None:
        async with self._registering:
            await self._ensure_account()

    async def _ensure_account(self) -> None:
        if self._key is None:
            found = await self._stored.load(self._directory_url)
            self._key, self._account, self._email = AccountKey(found.key), found.url, found.email
        if self._account and self._email == self._terms.email:
            return
        directory = await self._read_directory()
        contact = [f"mailto:{self._terms.email}"] if self._terms.email else []
        if self._account:
            try:
                await self._post(self._account, {"contact": contact})
            except AcmeProblem as problem:
                if problem.type != NO_ACCOUNT:
                    raise
                self._account = ""
        if not self._account:
            await self._create(directory, contact)
        self._email = self._terms.email
        await self._stored.registered(self._directory_url, self._account, self._email)

    async def _create(self, directory: dict[str, Any], contact: list[str]) -> None:
        meta = directory.get("meta") if isinstance(directory.get("meta"), dict) else {}
        assert isinstance(meta, dict)
        terms = _text(meta.get("termsOfService") or "")
        if terms and not self._terms.agreed:
            detail = f"the authority requires agreement to {terms}: read them, and set `acme_agree`"
            raise AcmeProblem("userActionRequired", detail)
        url = _url(directory, "newAccount")
        body: dict[str, Any] = {"termsOfServiceAgreed": self._terms.agreed, "contact": contact}
        if self._terms.binding_id:
            body["externalAccountBinding"] = self._signer.binding(url, self._terms.binding_id, self._terms.binding_key)
        elif meta.get("externalAccountRequired"):
            detail = "the authority requires an external account: set `acme_eab_id` and `acme_eab_key_file`"
            raise AcmeProblem("externalAccountRequired", detail)
        answer = await self._post(url, body, with_key=True)
        self._account = _location(answer)

    # Orders.

    async def _ordered(self, host: str, known: str, replaces: str) -> AcmeOrder:
        if known:
            try:
                found = await self._order_of(known, await self._post(known, None))
                if found.status in _OPEN:
                    return found
            except AcmeProblem as problem:
                if problem.type in _PASSING:
                    raise  # Other problems mean that the order has failed, expired or been deleted.
        body: dict[str, Any] = {"identifiers": [{"type": "dns", "value": host}]}
        name = certificate_id(replaces) if replaces and (await self._read_directory()).get("renewalInfo") else ""
        url = _url(await self._read_directory(), "newOrder")
        try:
            answer = await self._post(url, body | ({"replaces": name} if name else {}))
        except AcmeProblem as problem:
            if not name or problem.type in _PASSING:
                raise
            answer = await self._post(url, body)  # the former certificate is unknown to the authority, or replaced
        return await self._order_of(_location(answer), answer)

    async def _order_of(self, url: str, answer: Answer) -> AcmeOrder:
        found = _document(answer)
        order = AcmeOrder(
            url=url,
            status=_text(found.get("status", "")),
            finalize=_text(found.get("finalize", "")),
            certificate=_text(found.get("certificate", "")),
        )
        if order.status not in {"pending", "invalid"}:
            return order
        urls = _field(found, "authorizations", list)[:AUTHORIZATIONS_MOST]
        challenges = [each for url in urls if (each := await self._challenge(_text(url))) is not None]
        if order.status == "invalid":
            raise AcmeProblem("malformed", _reason(found) or "the authority rejected the order")
        return replace(order, challenges=tuple(challenges))

    async def _challenge(self, url: str) -> Challenge | None:
        """Return the challenge of a pending authorization; None: it is fulfilled already."""
        found = _document(await self._post(url, None))
        if found.get("status") == "valid":
            return None
        offered = [each for each in _field(found, "challenges", list) if isinstance(each, dict)]
        if found.get("status") != "pending":
            reasons = [text for each in offered if (text := _reason(each))]
            raise AcmeProblem(
                _type_of(offered), reasons[0] if reasons else "the authority could not check the challenge"
            )
        for each in offered:
            if each.get("type") == "http-01":
                token = _text(each.get("token"))
                if not _TOKEN.fullmatch(token):
                    raise AcmeProblem(SERVER, f"{token[:40]!r} is not the token of a challenge")
                return Challenge(_text(each.get("url")), token, self._signer.authorization(token))
        kinds = ", ".join(_text(each.get("type", "")) for each in offered)
        raise AcmeProblem("unauthorized", f"the authority offers no challenge of type http-01 ({kinds or 'none'})")

    async def _until(self, order: AcmeOrder, *statuses: str) -> AcmeOrder:
        """Wait until the order has none of these statuses."""
        until = self._clock.monotonic() + WAIT_SECONDS
        pause = POLL_SECONDS
        while True:
            answer = await self._post(order.url, None)
            found = await self._order_of(order.url, answer)
            if found.status not in statuses:
                return found
            if self._clock.monotonic() >= until:
                raise AcmeProblem(CONNECTION, f"the order was still {found.status} after {WAIT_SECONDS:g} s")
            asked = retry_after(answer.headers, self._clock.now())
            await self._clock.sleep(min(max(pause, asked or 0.0), POLL_SECONDS_MOST))
            pause = min(pause * 1.5, POLL_SECONDS_MOST)

    # Requests.

    async def _read_directory(self) -> dict[str, Any]:
        if not self._directory:
            answer = await self._transport.send("GET", self._directory_url)
            if answer.status != 200:
                raise self._problem(answer)
            self._directory = _document(answer)
        return self._directory

    async def _nonce(self) -> str:
        if self._nonces:
            return self._nonces.pop()
        answer = await self._transport.send("HEAD", _url(await self._read_directory(), "newNonce"))
        nonce = str(answer.headers.get("Replay-Nonce", ""))
        if not nonce:
            raise self._problem(answer)
        return nonce

    async def _post(
        self, url: str, payload: Any, *, with_key: bool = False, accept: str = "application/json"
    ) -> Answer:
        for _ in range(BAD_NONCES_MOST):
            account = "" if with_key else self._account
            body = self._signer.signed(url, payload, nonce=await self._nonce(), account=account)
            answer = await self._transport.send("POST", url, body, accept)
            nonce = str(answer.headers.get("Replay-Nonce", ""))
            if nonce and len(self._nonces) < NONCES_MOST:
                self._nonces.append(nonce)
            if answer.status < 400:
                return answer
            problem = self._problem(answer)
            if problem.type != "badNonce":
                raise problem
        raise problem

    def _problem(self, answer: Answer) -> AcmeProblem:
        found: Any = None
        with suppress(ValueError):
            found = json.loads(answer.body)
        found = found if isinstance(found, dict) else {}
        type_ = _text(found.get("type", "")).removeprefix(_PREFIX)
        if answer.status == 429:
            type_ = RATE_LIMITED
        elif not type_ or answer.status >= 500:
            type_ = SERVER if answer.status >= 500 else "malformed"
        detail = _detail(found) or f"{answer.url} answered with status {answer.status}"
        pause = retry_after(answer.headers, self._clock.now())
        return AcmeProblem(type_, detail, retry_seconds=pause)


def trust(file: str) -> ssl.SSLContext | bool:
    """Return the certificates to trust; empty: those of the machine. Raises `OSError` and `ValueError`."""
    return ssl.create_default_context(cafile=file) if file else True


def _unpadded(request: str) -> str:
    """Return a signing request in PEM format as ACME sends it."""
    return base64url(base64.b64decode("".join(request.strip().splitlines()[1:-1])))


def _document(answer: Answer) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(answer.body)
        if isinstance(found, dict):
            return found
    raise AcmeProblem(SERVER, f"{answer.url} answered {answer.status}, but not with an object in JSON")


def _field(document: dict[str, Any], name: str, kind: type) -> Any:
    found = document.get(name)
    if not isinstance(found, kind):
        raise AcmeProblem(SERVER, f"the answer of the authority has no valid field {name!r}")
    return found


def _url(document: dict[str, Any], name: str) -> str:
    return _text(_field(document, name, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 2048 else ""


def _location(answer: Answer) -> str:
    found = _text(answer.headers.get("Location", ""))
    if not found:
        raise AcmeProblem(SERVER, f"the answer of {answer.url} has no header Location")
    return found


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise AcmeProblem(SERVER, f"{text[:40]!r} is not a time") from None


def _detail(problem: dict[str, Any]) -> str:
    """Return the words of a problem document and of its parts."""
    parts = problem.get("subproblems")
    parts = [each for each in parts if isinstance(each, dict)] if isinstance(parts, list) else []
    words = [str(each.get("detail", "")) for each in (problem, *parts)]
    return " ".join(" ".join(each for each in words if each).split())


def _reason(holder: dict[str, Any]) -> str:
    error = holder.get("error")
    return _detail(error) if isinstance(error, dict) else ""


def _type_of(challenges: list[dict[str, Any]]) -> str:
    for each in challenges:
        if isinstance(each.get("error"), dict):
            return _text(each["error"].get("type", "")).removeprefix(_PREFIX) or "unauthorized"
    return "unauthorized"
