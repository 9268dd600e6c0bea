"""Builds the documentation as a site: every page of the repository, in the order of docs/README.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "deploy", "examples", "bench")
INDEX = Path("docs/README.md")

Nav = list[tuple[str, list[tuple[str, str]]]]
"""Sections, each with its pages: title and path."""


def pages() -> list[Path]:
    """Relative to the repository."""
    found = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    return sorted(page.relative_to(ROOT) for page in found)


def links(page: Path, text: str = "") -> list[tuple[str, Path]]:
    """What a page, or this text of it, links to in the repository: the words, and the path."""
    prose = re.sub(r"```.*?```", "", text or (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    found = []
    for words, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", target):
            found.append((words, (ROOT / page.parent / path).resolve().relative_to(ROOT)))
    return found


def sections() -> Nav:
    """`* **Tutorial**: [a page](path), …`, as docs/README.md lists them; what it leaves out comes last."""
    nav: Nav = [("Mandor", [("What it is", "README.md"), ("All pages", str(INDEX))])]
    index = (ROOT / INDEX).read_text(encoding="utf-8")
    for section, line in re.findall(r"^\* \*\*(.+?)\*\*: (.+)$", index, re.MULTILINE):
        found = [(words, path) for words, path in links(INDEX, line) if path.suffix == ".md"]
        nav.append((section, [(words[:1].upper() + words[1:], str(path)) for words, path in found]))
    listed = {path for _, entries in nav for _, path in entries}
    rest = [page for page in pages() if str(page) not in listed]
    records = [page for page in rest if page.parent.name == "adr"]
    nav.append(("Decisions", [(heading(page), str(page)) for page in records]))
    nav.append(("More", [(heading(page), str(page)) for page in rest if page not in records]))
    return [(section, entries) for section, entries in nav if entries]


def heading(page: Path) -> str:
    found = re.search(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def as_toml(nav: Nav) -> str:
    lines = []
    for section, entries in nav:
        inside = ", ".join(f"{{{json.dumps(title)} = {json.dumps(path)}}}" for title, path in entries)
        lines.append(f"  {{{json.dumps(section)} = [{inside}]}},")
    return "\n".join(["nav = [", *lines, "]"])


def stage(folder: Path) -> None:
    """The pages and what they link to, where their links expect them, and the settings."""
    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    linked = {path for page in pages() for _, path in links(page) if (ROOT / path).is_file()}
    for path in sorted({*pages(), *linked}):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    (folder / "zensical.toml").write_text(
        settings.replace("[project]\n", f"[project]\n{as_toml(sections())}\n", 1), encoding="utf-8"
    )


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    stage(folder)
    command = [
        str(Path(sys.executable).with_name("zensical")),
        "build",
        "--strict",
        "-f",
        str(folder / "zensical.toml"),
    ]
    done = subprocess.run(command, cwd=folder, check=False)
    if done.returncode == 0:
        print(f"the site is in {folder / 'html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
