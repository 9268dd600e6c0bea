"""Converts the `auth` block of a container into a secret with the login, and the task's `pull_secret`."""

from mandor.importers.base import Made, fitting_name
from mandor.importers.nomad.blocks import block
from mandor.importers.nomad.runtime import Runtime
from mandor.importers.part import Part
from mandor.model.image_reference import repository_of


def read_login(config: Part, runtime: Runtime, image: str) -> tuple[str, Made | None] | None:
    """Return the secret's name, and the secret unless its values come from elsewhere; None: there is no `auth`. Notes
    never contain a value."""
    part = block(config, "auth")
    if not part:
        return None
    name = fitting_name(f"{runtime.job}-{runtime.group}-{runtime.task}-registry")
    user, password = part.text("username") or "", part.text("password") or ""
    registry = part.text("server_address") or repository_of(image).partition("/")[0]
    part.drop("email", "registries do not use it")
    part.drop("tls_verify", "the engine of the node decides which registries it trusts")
    if not user or not password or "${" in user + password + registry:
        config.guess("auth", f"its values are not in this file: a secret {name} must exist")
        return name, None
    data = {"registry": registry, "username": user, "password": password}
    secret = {"kind": "secret", "name": name, "data": data}
    return name, Made(secret, part.file, part.line)
