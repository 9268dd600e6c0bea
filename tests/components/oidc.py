"""A small, strict OpenID provider on loopback: discovery, JWKS, code flow with PKCE, device flow, refresh.

It accepts one public client, and refuses what a provider must refuse: another client, a redirect that is not the
client's, a code that was used, a wrong verifier, a missing challenge. Users confirm at once (`user`, `groups`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "mandor-cli"


class Provider:
    """State of the provider; tests change `user`, `groups`, `life` and rotate its keys."""

    def __init__(self) -> None:
        self.user, self.groups, self.life = "ani", ["shop"], 3600.0
        self.extra: dict[str, Any] = {}
        self.device_pending = 1
        self.reads: dict[str, int] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.devices: dict[str, int] = {}
        self.refresh_tokens: set[str] = set()
        self.url = ""
        self.keys: dict[str, Any] = {}
        self.rotate()

    # Keys and tokens.

    def rotate(self, *, rsa_key: bool = False) -> str:
        """Sign with a new key from now on; the old ones leave the JWKS."""
        key: Any = rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
        self.kid = secrets.token_hex(4)
        self.keys = {self.kid: key}
        return self.kid

    @property
    def key(self) -> Any:
        return self.keys[self.kid]

    @property
    def alg(self) -> str:
        return "RS256" if isinstance(self.key, rsa.RSAPrivateKey) else "ES256"

    def jwks(self) -> dict[str, Any]:
        found = []
        for kid, key in self.keys.items():
            kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            plain = json.loads(kind.to_jwk(key.public_key()))
            found.append({**plain, "kid": kid, "use": "sig"})
        return {"keys": found}

    def claims(self, **more: Any) -> dict[str, Any]:
        now = time.time()
        base = {"iss": self.url, "aud": CLIENT, "sub": self.user, "iat": now, "exp": now + self.life}
        return {**base, "groups": self.groups, **self.extra, **more}

    def sign(self, headers: dict[str, Any] | None = None, **more: Any) -> str:
        """A token of this provider with other claims; None takes a claim away."""
        claims = {name: value for name, value in self.claims(**more).items() if value is not None}
        return jwt.encode(claims, self.key, algorithm=self.alg, headers={"kid": self.kid, **(headers or {})})

    # Endpoints.

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "revocation_endpoint": f"{self.url}/revoke",
            "jwks_uri": f"{self.url}/jwks",
        }

    def authorize(self, query: dict[str, str]) -> str:
        redirect = urlsplit(query.get("redirect_uri", ""))
        if query.get("client_id") != CLIENT:
            raise Refusal("invalid_client")
        if redirect.scheme != "http" or redirect.hostname != "127.0.0.1" or redirect.path != "/callback":
            raise Refusal("invalid_redirect_uri")
        if query.get("response_type") != "code" or query.get("code_challenge_method") != "S256":
            raise Refusal("invalid_request")
        if len(query.get("code_challenge", "")) != 43 or "openid" not in query.get("scope", "").split():
            raise Refusal("invalid_request")
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> dict[str, Any]:
        if form.get("client_id") != CLIENT:
            raise Refusal("invalid_client")
        grant = form.get("grant_type")
        if grant == "authorization_code":
            asked = self.codes.pop(form.get("code", ""), None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if asked is None or asked["redirect_uri"] != form.get("redirect_uri"):
                raise Refusal("invalid_grant")
            if asked["code_challenge"] != challenge:
                raise Refusal("invalid_grant")
            return self._answer(asked["scope"], nonce=asked.get("nonce"))
        if grant == "refresh_token":
            if form.get("refresh_token") not in self.refresh_tokens:
                raise Refusal("invalid_grant")
            self.refresh_tokens.discard(form["refresh_token"])
            return self._answer("openid offline_access")
        if grant == "urn:ietf:params:oauth:grant-type:device_code":
            left = self.devices.get(form.get("device_code", ""))
            if left is None:
                raise Refusal("invalid_grant")
            self.devices[form["device_code"]] = left - 1
            if left > 0:
                raise Refusal("authorization_pending")
            del self.devices[form["device_code"]]
            return self._answer("openid offline_access")
        raise Refusal("unsupported_grant_type")

    def _answer(self, scope: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"id_token": self.sign(**more), "access_token": "opaque", "token_type": "Bearer"}
        if "offline_access" in scope.split():
            found["refresh_token"] = secrets.token_urlsafe(16)
            self.refresh_tokens.add(found["refresh_token"])
        return found

    def device(self, form: dict[str, str]) -> dict[str, Any]:
        if form.get("client_id") != CLIENT:
            raise Refusal("invalid_client")
        code = secrets.token_urlsafe(16)
        self.devices[code] = self.device_pending
        return {
            "device_code": code,
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.url}/activate",
            "expires_in": 60,
            "interval": 0.05,
        }


class Refusal(Exception):
    """An error of OAuth."""


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.provider.reads[parts.path] = self.provider.reads.get(parts.path, 0) + 1
        if parts.path == "/.well-known/openid-configuration":
            self._send(200, self.provider.discovery())
        elif parts.path == "/jwks":
            self._send(200, self.provider.jwks())
        elif parts.path == "/authorize":
            try:
                location = self.provider.authorize(query)
            except Refusal as error:
                self._send(400, {"error": str(error)})
                return
            self.send_response(302)
            self.send_header("location", location)
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        form = {
            name: values[0]
            for name, values in parse_qs(self.rfile.read(int(self.headers.get("content-length", 0))).decode()).items()
        }
        try:
            if self.path == "/token":
                self._send(200, self.provider.token(form))
            elif self.path == "/device":
                self._send(200, self.provider.device(form))
            elif self.path == "/revoke":
                self.provider.refresh_tokens.discard(form.get("token", ""))
                self._send(200, {})
            else:
                self._send(404, {})
        except Refusal as error:
            self._send(400, {"error": str(error)})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        return


@contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": provider}))
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
