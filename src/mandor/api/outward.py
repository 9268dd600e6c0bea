"""Admission of objects that name hosts to call or files to read: hosts by the egress policy, files by name alone."""

from mandor.api.parts import ApiParts
from mandor.errors import Invalid, Unsupported
from mandor.lib.egress import Refused
from mandor.lib.secret_files import plain_name
from mandor.model.log_sink import LogSink
from mandor.model.meta import Object
from mandor.model.pool import NodePool
from mandor.model.receiver import FILE, FILE_HINT, EventBus, Webhook
from mandor.provision.registry import check_outward as check_provisioner

FEATURE = "secret-files"


def check_outward(parts: ApiParts, value: Object) -> None:
    """Raise `Invalid` for hosts and files that the server's policy does not allow.

    A host name is checked again when it is resolved, because its address may change.
    """
    if isinstance(value, NodePool) and value.spec.autoscale is not None:
        check_provisioner(value.spec.autoscale, "spec.autoscale", parts.egress, parts.files)
    if isinstance(value, Webhook):
        _check_urls(parts, [value.spec.url])
        _check_files(parts, value.spec.ca, secret=value.spec.secret, old_secret=value.spec.old_secret)
    elif isinstance(value, EventBus):
        scheme, _, hosts = value.spec.url.partition("://")
        _check_urls(parts, [f"{scheme}://{each}" for each in hosts.split(",")])
        _check_files(parts, value.spec.ca, password=value.spec.password)
    elif isinstance(value, LogSink):
        # Agents check hosts and names against their own policy: only paths are refused here.
        _check_files(parts, value.spec.ca, own=False, password=value.spec.password, token=value.spec.token)


def _check_urls(parts: ApiParts, urls: list[str]) -> None:
    for url in urls:
        try:
            parts.egress.check_url(url)
        except Refused as error:
            raise Invalid(
                str(error),
                hint="an administrator can allow it with the setting `egress_allow` of the servers",
                path="spec.url",
            ) from error


def _check_files(parts: ApiParts, ca: str, *, own: bool = True, **references: str | None) -> None:
    named = {path: text.removeprefix(FILE) for path, text in references.items() if text and text.startswith(FILE)}
    for path, name in (({"ca": ca} if ca else {}) | named).items():
        try:
            if own:
                parts.files.path(name)
            elif not plain_name(name):
                raise ValueError(f"{name[:80]!r} is a path; only names of files are allowed")
        except ValueError as error:
            raise Invalid(str(error), hint=FILE_HINT, path=f"spec.{path}") from error
        if plain_name(name) and FEATURE not in parts.everywhere():
            raise Unsupported(
                f"spec.{path} names a file without its path, and not every server knows `{FEATURE}` yet",
                hint="upgrade all servers first; `mandor get servers` shows their versions",
                feature=FEATURE,
            )
