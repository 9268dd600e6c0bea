"""Login with OpenID Connect: authorization code with PKCE on a loopback address, device code, and refresh."""

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from mandor.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from mandor.lib.loopback import is_loopback

BYTES_MOST = 1 << 20
WAIT_SECONDS = 300.0
"""Seconds that a user has to log in."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
EARLY_SECONDS = 60.0
"""Seconds before its expiry at which an ID token is refreshed."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID provider and its discovery document."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    ca_file: str
    endpoints: Mapping[str, Any]

    @classmethod
    def find(cls, issuer: str, client_id: str, scopes: tuple[str, ...], ca_file: str = "") -> "Provider":
        document = _ask(issuer.rstrip("/") + "/.well-known/openid-configuration", None, ca_file)
        if document.get("issuer") != issuer:
            raise Invalid(f"{issuer} describes another issuer: {str(document.get('issuer'))[:100]!r}")
        return cls(issuer, client_id, scopes, ca_file, document)

    def endpoint(self, name: str) -> str:
        url = str(self.endpoints.get(name) or "")
        if not url:
            raise Invalid(f"{self.issuer} has no {name}")
        _check_url(url)
        return url

    def by_browser(self, opened: Callable[[str], None], wait_seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Authorization code flow with PKCE; `opened` shows the URL to the user."""
        verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
        with _Callback(state) as callback:
            query = {
                "response_type": "code",
                "client_id": self.client_id,
                "redirect_uri": callback.url,
                "scope": " ".join(self.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": _challenge(verifier),
                "code_challenge_method": "S256",
            }
            if "offline_access" in self.scopes:
                query["prompt"] = "consent"  # without it providers leave the refresh token out
            url = self.endpoint("authorization_endpoint")
            opened(f"{url}{'&' if '?' in url else '?'}{urlencode(query)}")
            code = callback.wait(wait_seconds)
            form = {"code": code, "redirect_uri": callback.url, "code_verifier": verifier}
        return self._tokens("authorization_code", form, nonce)

    def by_device(
        self, shown: Callable[[str, str], None], sleep: Callable[[float], None] = time.sleep
    ) -> dict[str, Any]:
        """Device flow (RFC 8628), for machines without a browser; `shown` gets the URL and the code to type there."""
        form = {"client_id": self.client_id, "scope": " ".join(self.scopes)}
        begun = _ask(self.endpoint("device_authorization_endpoint"), form, self.ca_file)
        _check_url(str(begun.get("verification_uri", "")))
        shown(str(begun.get("verification_uri_complete") or begun["verification_uri"]), str(begun["user_code"]))
        ends_at = time.monotonic() + min(float(begun.get("expires_in", WAIT_SECONDS)), 3600.0)
        pause = max(float(begun.get("interval", 5)), 0.05)
        while time.monotonic() < ends_at:
            sleep(pause)
            try:
                return self._tokens(DEVICE_GRANT, {"device_code": str(begun["device_code"])}, None)
            except Refused as error:
                if error.code == "slow_down":
                    pause += 5
                elif error.code != "authorization_pending":
                    raise
        raise Unauthenticated("the code was not confirmed in time", hint="run `mandor login` again")

    def refreshed(self, refresh_token: str) -> dict[str, Any]:
        found = self._tokens("refresh_token", {"refresh_token": refresh_token}, None)
        return {"refresh_token": refresh_token, **found}

    def _tokens(self, grant: str, form: dict[str, str], nonce: str | None) -> dict[str, Any]:
        form = {"grant_type": grant, "client_id": self.client_id, **form}
        answer = _ask(self.endpoint("token_endpoint"), form, self.ca_file)
        token = str(answer.get("id_token") or "")
        claims = claims_of(token)
        # The token comes from the issuer itself, over TLS; the server verifies its signature for every request.
        audience = claims.get("aud")
        if claims.get("iss") != self.issuer or self.client_id not in (
            audience if isinstance(audience, list) else [audience]
        ):
            raise Forbidden("the provider returned an ID token of another issuer or for another client")
        if nonce is not None and not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise Forbidden("the provider returned an ID token of another login")
        found = {"id_token": token, "expires_at": float(claims["exp"])}
        return {**found, "refresh_token": answer["refresh_token"]} if answer.get("refresh_token") else found

    def revoke(self, refresh_token: str) -> None:
        """Revoke the refresh token, if the provider has an endpoint for that."""
        if self.endpoints.get("revocation_endpoint"):
            form = {"client_id": self.client_id, "token": refresh_token, "token_type_hint": "refresh_token"}
            _ask(self.endpoint("revocation_endpoint"), form, self.ca_file, empty=True)


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of an ID token without verifying it."""
    try:
        part = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        float(found["exp"])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise Unauthenticated(
            "the provider returned no ID token", hint="check that it supports the scope `openid`"
        ) from error
    return dict(found)


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


class Refused(Unauthenticated):
    """An error of the token endpoint, such as `authorization_pending`."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(
            f"the OpenID provider rejected the request: {error} {description}".strip(), hint="run `mandor login` again"
        )
        self.code = error  # type: ignore[misc]


# HTTP.


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise Invalid(f"{url[:200]!r} is not https", hint="credentials are sent only over https")


def _ask(url: str, form: Mapping[str, str] | None, ca_file: str, *, empty: bool = False) -> dict[str, Any]:
    _check_url(url)
    context = ssl.create_default_context(cafile=ca_file or None)
    opener = build_opener(_NoRedirect(), HTTPSHandler(context=context), ProxyHandler())
    data = urlencode(form).encode() if form is not None else None
    request = Request(url, data=data, headers={"accept": "application/json"})  # noqa: S310 - checked above
    try:
        with opener.open(request, timeout=30) as answer:
            text = answer.read(BYTES_MOST)
    except HTTPError as error:
        with error:
            found = _plain(error.read(BYTES_MOST))
        raise Refused(
            str(found.get("error", error.code))[:100], str(found.get("error_description", ""))[:300]
        ) from error
    except (URLError, OSError) as error:
        raise Unavailable(f"{urlsplit(url).netloc} cannot be reached: {error}") from error
    found = _plain(text)
    if not found and not empty:
        raise Unavailable(f"{url} did not return a JSON object")
    return found


def _plain(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Callback:
    """A listener on loopback for the one redirect that carries the code."""

    def __init__(self, state: str) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                outer.take(self)

            def log_message(self, *args: Any) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._state = state
        self._found: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self._server.server_port}/callback"

    def __enter__(self) -> "_Callback":
        return self

    def __exit__(self, *args: object) -> None:
        self._server.server_close()

    def take(self, request: BaseHTTPRequestHandler) -> None:
        """Handle one request; requests without the state of this login are ignored."""
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        mine = parts.path == "/callback" and hmac.compare_digest(query.get("state", ""), self._state)
        if mine and ("code" in query or "error" in query):
            self._found = query
        text = "You are logged in; this page can be closed." if mine and "code" in query else "Not logged in."
        body = f"<!doctype html><meta charset=utf-8><title>mandor</title><p>{text}".encode()
        request.send_response(200 if mine else 400)
        for name, value in (
            ("content-type", "text/html; charset=utf-8"),
            ("content-length", str(len(body))),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ):
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def wait(self, seconds: float) -> str:
        ends_at = time.monotonic() + seconds
        while not self._found and (left := ends_at - time.monotonic()) > 0:
            self._server.timeout = min(left, 1.0)
            try:
                self._server.handle_request()
            except (TimeoutError, ConnectionError):
                continue
        if "error" in self._found:
            raise Refused(self._found["error"][:100], self._found.get("error_description", "")[:300])
        if not self._found:
            raise Unauthenticated(
                "the login was not completed in time", hint="run `mandor login` again; `--device` needs no browser"
            )
        return self._found["code"]


# The login of a server.


def fresh_token(login: Mapping[str, Any], now: float) -> tuple[str, dict[str, Any] | None]:
    """Return the ID token to send, and the changed login to store; None if it is unchanged."""
    if float(login["expires_at"]) - EARLY_SECONDS > now:
        return str(login["id_token"]), None
    if not login.get("refresh_token"):
        raise Unauthenticated("the login has expired", hint="run `mandor login` again")
    provider = Provider.find(login["issuer"], login["client_id"], tuple(login["scopes"]), login.get("provider_ca", ""))
    found = {**login, **provider.refreshed(str(login["refresh_token"]))}
    return found["id_token"], found
