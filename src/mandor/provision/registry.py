"""Provisioners by name: the built-in ones and entry points of `mandor.provisioners`."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mandor.engines.options import read_options
from mandor.errors import Invalid
from mandor.lib import registry
from mandor.lib.egress import STRICT, Egress, Refused
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.lib.words import did_you_mean
from mandor.model.machine import NodeAutoscale
from mandor.provision.base import Provisioner

GROUP = "mandor.provisioners"
BUILT_IN = {
    "fake": "mandor.provision.fake:FakeProvisioner",
    "incus": "mandor.provision.incus:IncusProvisioner",
    "pipeline": "mandor.provision.pipeline:PipelineProvisioner",
}


def known_provisioners() -> list[str]:
    return sorted({*BUILT_IN, *registry.names(GROUP)})


def make_provisioner(
    name: str, settings: Mapping[str, str], egress: Egress = STRICT, files: SecretFiles = NO_FILES
) -> Provisioner:
    factory = _load(name)
    _check_settings(name, factory, settings)
    made = factory(**resolved_settings(factory, settings, egress, files))
    if not isinstance(made, Provisioner):
        raise Invalid(f"what is registered as the provisioner {name} is not one: {type(made).__name__}")
    made.restrict(egress)
    return made


def resolved_settings(
    factory: type[Provisioner], settings: Mapping[str, str], egress: Egress, files: SecretFiles
) -> dict[str, str]:
    """Return the settings of a pool with the paths of their files; raise `Invalid` for files and hosts that are not
    allowed."""
    found = dict(settings)
    try:
        for name in factory.file_settings:
            if found.get(name):
                found[name] = str(files.path(found[name]))
        for name in factory.url_settings:
            url = found.get(name, "")
            if url.startswith("unix:"):
                egress.check_socket("/" + url.removeprefix("unix:").lstrip("/"))
            elif url:
                egress.check_url(url)
    except (ValueError, Refused) as error:
        raise Invalid(f"the setting `{name}` of the provisioner: {error}", path=f"settings.{name}") from error
    return found


def check_outward(scaling: NodeAutoscale, path: str, egress: Egress, files: SecretFiles) -> None:
    """Raise `Invalid`, with the path, for hosts and files that the settings of a pool may not name."""
    try:
        resolved_settings(_load(scaling.provisioner), scaling.settings, egress, files)
    except Invalid as error:
        error.facts["path"] = f"{path}.{error.facts.get('path', 'provisioner')}"
        raise


def same_place(before: NodeAutoscale, after: NodeAutoscale) -> bool:
    """Return whether machines of one configuration are found with the other: credentials may differ."""
    return before.provisioner == after.provisioner and _place(before) == _place(after)


def _place(scaling: NodeAutoscale) -> dict[str, str]:
    try:
        credentials = _load(scaling.provisioner).file_settings
    except Invalid:
        credentials = ()
    return {name: value for name, value in scaling.settings.items() if name not in credentials}


def check_scaling(scaling: NodeAutoscale, path: str) -> None:
    """Raise `Invalid`, with the path, for options that the provisioner would refuse."""
    try:
        factory = _load(scaling.provisioner)
        _check_settings(scaling.provisioner, factory, scaling.settings)
    except Invalid as error:
        error.facts.setdefault("path", f"{path}.provisioner")
        raise
    for name, kind in scaling.kinds.items():
        read_options(scaling.provisioner, kind.options, factory.options, f"{path}.kinds.{name}.options")


def _check_settings(name: str, factory: Any, settings: Mapping[str, str]) -> None:
    accepted = [each for each in inspect.signature(factory).parameters if each != "self"]
    for setting in settings:
        if setting not in accepted:
            raise Invalid(f"the provisioner {name} has no setting `{setting}`", hint=did_you_mean(setting, accepted))
    needed = inspect.signature(factory).parameters.values()
    for each in needed:
        if each.default is each.empty and each.name not in settings:
            raise Invalid(
                f"the provisioner {name} needs the setting `{each.name}`", hint=f"settings: {{{each.name}: …}}"
            )


def _load(name: str) -> Any:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(import_module(module), attribute)
    try:
        return registry.load(GROUP, name)
    except LookupError:
        raise Invalid(
            f"there is no provisioner called {name!r}", hint=did_you_mean(name, known_provisioners())
        ) from None
    except ImportError as error:
        raise Invalid(f"the provisioner {name} cannot be loaded: {error}", hint="is its package complete?") from error
