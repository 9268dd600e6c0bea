"""Nomad's `template` blocks: files and variables of a task; the texts are evaluated by `go_template`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled
from mandor.importers.compose.interpolation import read_variables
from mandor.importers.nomad.blocks import blocks, drop_all
from mandor.importers.nomad.go_template import NoCounterpart, rendered
from mandor.importers.nomad.runtime import Runtime
from mandor.importers.part import Part

_REFERENCE = re.compile(r"\$\{secret:[^{}\s]*\}")
_FILLED = re.compile(r"\$\{(?:secret:|MANDOR_)")
_OF_CHANGES = ("change_mode", "change_signal", "change_script", "splay", "wait")
_OF_TEMPLATES = (*_OF_CHANGES, "error_on_missing_key", "once")
_HIDDEN = "\0"
"""Placeholder for `$` where it would start a variable."""


@dataclass(slots=True)
class TemplateResult:
    """Result of the templates of a task."""

    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    change_signal: str | None = None
    """The signal of the first template with `change_mode = "signal"`."""
    unsupported: bool = False
    """A template has no counterpart."""

    @property
    def names_secrets(self) -> bool:
        texts = (*self.env.values(), *(each.get("content", "") for each in self.files))
        held = any("secret" in each for each in self.files) or any("${secret:" in each for each in texts)
        return held or bool(self.secrets)


def read_template(result: TemplateResult, part: Part, runtime: Runtime, env: dict[str, str]) -> None:
    """Convert a template; `env`: the task's own variables."""
    data, path = part.text("data"), part.text("destination", "") or ""
    as_env, mode = part.flag("env"), part.text("perms")
    change = part.text("change_mode")
    if change not in {None, "noop", "restart", "signal", "script"}:
        raise part.wrong("change_mode", f"{change[:40]!r} is none of restart, noop, signal, script")
    left, right = part.text("left_delimiter") or "{{", part.text("right_delimiter") or "}}"
    for key in ("uid", "gid", "vault_grace", "source"):
        part.drop(key, "files are written when the task starts and belong to its user")

    def known(name: str) -> str | None:
        return env[name] if name in env else runtime.known(name)

    try:
        if data is None:
            raise NoCounterpart("its text is in a file that the task fetches")
        found = rendered(runtime.fill(data, part, "data"), left, right, known)
    except NoCounterpart as why:
        result.unsupported = True
        for key in ("data", "destination", "env", "perms", *_OF_TEMPLATES):
            part.drop(key, str(why), "write the text itself, or let the program find it out")
        return
    on_change = _on_change(result, part, runtime, change, path) if found.secrets and not as_env else None
    if not found.secrets:
        for key in _OF_TEMPLATES:
            part.ignore(key)  # about changing texts; this text never changes
    elif on_change is None:
        for key in _OF_TEMPLATES:
            if not (key == "change_mode" and change == "noop"):
                part.drop(key, "a secret is read when the task starts")
    else:
        drop_all(
            part,
            dict.fromkeys(
                ("change_script", "splay", "wait", "error_on_missing_key", "once"),
                "a change of a secret reaches the task within seconds",
            ),
        )
    for name, keys in found.secrets.items():
        part.guess("data", f"a secret {name} must exist, with {', '.join(sorted(keys))}", "`kind: secret`")
    if as_env:
        if path:
            part.guess("destination", "its variables are set; no file is written")
        _variables(result, part, found.text)
    else:
        place = runtime.fill(path, part, "destination", now=True).lstrip("/")
        result.files.append(_file(f"{runtime.folder}{place}", found.text, mode) | filled(on_change=on_change))


def _on_change(result: TemplateResult, part: Part, runtime: Runtime, mode: str | None, path: str) -> str | None:
    """Return `on_change` of the file for Nomad's `change_mode`; None: it has no counterpart here."""
    if mode == "restart" and runtime.restarts:
        part.ignore("change_signal")
        return "restart"
    name = part.text("change_signal") if mode == "signal" else None
    if mode != "signal" or "/" not in path.strip("/") or result.change_signal not in {None, name or "SIGHUP"}:
        return None
    result.change_signal = name or "SIGHUP"
    return "signal"


def _variables(result: TemplateResult, part: Part, text: str) -> None:
    try:
        read = read_variables(text.replace("$", _HIDDEN), {})
    except ValueError as error:
        raise part.wrong("data", str(error).replace(_HIDDEN, "$")) from None
    for name, value in read.items():
        shown = (value or "").replace(_HIDDEN, "$")
        if _REFERENCE.fullmatch(shown):
            result.secrets[name] = shown.removeprefix("${secret:").removesuffix("}")
        else:
            result.env[name] = shown


def _file(path: str, text: str, mode: str | None) -> dict[str, Any]:
    perms = mode if mode is not None and re.fullmatch(r"0?[0-7]{3}", mode) else None
    if _REFERENCE.fullmatch(text.strip()):
        secret = text.strip().removeprefix("${secret:").removesuffix("}")
        return filled(path=path, secret=secret, mode=perms)
    return filled(path=path, content=text, mode=perms, fill=_FILLED.search(text) is not None or None)


def read_vault(part: Part, results: Sequence[TemplateResult]) -> None:
    """Drop the `vault` block of a task, a group or a job; `results`: results of the templates that it is about."""
    if not any(each.names_secrets for each in results) or any(each.unsupported for each in results):
        part.drop("vault", "secrets of Vault are not fetched", "`kind: secret`")
        return
    for each in blocks(part, "vault"):
        each.drop_rest("a task can use every secret of its namespace")
    if "vault" in part:
        part.guess("vault", "a task can use every secret of its namespace")
