"""Nomad artifacts, as shell commands that fetch them before a task starts."""

import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import parse_qs, urlsplit

from mandor.importers.nomad.blocks import pairs
from mandor.importers.nomad.runtime import Runtime
from mandor.importers.part import Part

IMAGE = "docker.io/library/busybox:1.36"
"""Image that fetches for a task in a container, whose own image may lack the tools."""
_SUMS = {"md5": "md5sum", "sha1": "sha1sum", "sha256": "sha256sum", "sha512": "sha512sum"}
_UNPACK = {
    (".tar.gz", ".tgz"): 'tar -xzf "$file.part" -C "$folder"',
    (".tar.bz2", ".tbz2"): 'tar -xjf "$file.part" -C "$folder"',
    (".tar.xz", ".txz"): 'tar -xJf "$file.part" -C "$folder"',
    (".tar",): 'tar -xf "$file.part" -C "$folder"',
    (".zip",): 'unzip -oq "$file.part" -d "$folder"',
}
_RUN = """program=$1; shift
for found in "local/$program" "./$program"; do if [ -f "$found" ]; then program=$found; fi; done
if [ -f "$program" ]; then chmod +x "$program"; fi
exec "$program" "$@"
"""
"""Shell lines that run a program of the task's folder by its name, as Nomad does."""


@dataclass(slots=True)
class Fetching:
    """Shell lines collected so far."""

    lines: list[str] = field(default_factory=list)

    @property
    def script(self) -> str:
        return "\n".join(["set -e", *self.lines])

    def around(self, command: list[str]) -> list[str]:
        """Return a command that fetches first and then runs the program."""
        return ["/bin/sh", "-c", f"{self.script}\n{_RUN}", "sh", *command]

    def add(self, part: Part, runtime: Runtime, *, container: bool) -> None:
        source = runtime.fill(part.text("source") or "", part, "source", now=True)
        place = runtime.fill(part.text("destination") or "local/", part, "destination", now=True)
        mode, options = part.text("mode") or "any", pairs(part, "options")
        headers = [f"{name}: {value}" for name, value in pairs(part, "headers").items()]
        if mode not in {"any", "file", "dir"}:
            raise part.wrong("mode", f"{mode[:40]!r} is none of any, file, dir")
        for key in ("chown", "insecure"):
            part.drop(key, "what is fetched belongs to the task's user")
        why = _refusal(source, options, container=container)
        if why:
            for key in ("source", "destination", "mode", "options", "headers"):
                part.drop(key, why, "put it into the image, a volume or `files`")
            return
        place = place.rstrip("/") if place.startswith(runtime.folder) else runtime.folder + place.rstrip("/")
        runtime.shares = runtime.shares or place.lstrip("./").startswith("alloc")
        if source.startswith("git::"):
            self.lines.append(_clone(source.removeprefix("git::"), place))
        else:
            self._fetch(source, place, mode, options, headers)
        part.guess("source", "the task downloads it at each start, with curl or wget")

    def _fetch(self, source: str, place: str, mode: str, options: dict[str, str], headers: list[str]) -> None:
        url = urlsplit(source)
        asked = parse_qs(url.query)
        checksum = options.get("checksum") or asked.get("checksum", [""])[0]
        name = options.get("filename") or asked.get("filename", [""])[0] or PurePosixPath(url.path).name or "artifact"
        unpack = _unpacking(name, options.get("archive") or asked.get("archive", [""])[0])
        target = place if mode == "file" and not unpack else f"{place}/{name}"
        curl = shlex.join([*(word for each in headers for word in ("-H", each)), source])
        wget = shlex.join([*(word for each in headers for word in ("--header", each)), source])
        self.lines += [f"file={shlex.quote(target)}; folder={shlex.quote(str(PurePosixPath(target).parent))}"]
        fetch = f'curl -fsSL -o "$file.part" {curl} 2>/dev/null || wget -q -O "$file.part" {wget}'
        steps = ['mkdir -p "$folder"', f"{{ {fetch}; }}"]
        if checksum:
            kind, _, total = checksum.partition(":")
            steps.append(f'echo "{total}  $file.part" | {_SUMS[kind]} -c -')
        if unpack:
            steps.append(unpack)
        steps.append('mv "$file.part" "$file"')  # last: the checks above guard what exists
        self.lines.append('if [ ! -e "$file" ]; then ' + "; ".join(steps) + "; fi")


def _refusal(source: str, options: dict[str, str], *, container: bool) -> str:
    checksum = options.get("checksum", "")
    if odd := options.keys() - {"checksum", "archive", "ref", "depth", "filename"}:
        return f"the option {min(odd)} has no counterpart"
    if checksum and (checksum.partition(":")[0] not in _SUMS or not checksum.partition(":")[2].isalnum()):
        return "its checksum type is not supported"
    if source.startswith("git::") and "//" in urlsplit(source.removeprefix("git::")).path:
        return "a repository is fetched as a whole, not one of its folders"
    if container and source.startswith("git::"):
        return "for a container it is fetched with busybox, which does not know git"
    if not source.removeprefix("git::").startswith(("http://", "https://")):
        return "only http, https and git are supported"
    return ""


def _clone(source: str, place: str) -> str:
    url = urlsplit(source)
    ref = parse_qs(url.query).get("ref", [""])[0]
    words = ["git", "clone", "-q", "--depth", "1", *(["--branch", ref] if ref else []), url._replace(query="").geturl()]
    return f"if [ ! -e {shlex.quote(place)} ]; then {shlex.join([*words, place])}; fi"


def _unpacking(name: str, given: str) -> str:
    if given == "false":
        return ""
    ending = f".{given}" if given else name
    return next((how for endings, how in _UNPACK.items() if ending.endswith(endings)), "")
