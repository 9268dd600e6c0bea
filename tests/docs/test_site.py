"""The documentation as a site: built strictly, whole, and with nothing loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_pages import pages
from tests.docs.text import ROOT


def test_the_site_is_built_with_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site.py", tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    html = tmp_path / "site" / "html"
    for page in pages():
        path = page.relative_to(ROOT)
        name = path.parent if path.name == "README.md" else path.with_suffix("")
        built = html / name / "index.html"
        assert built.is_file(), f"{path} is missing"
        loaded = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|preconnect|icon)")[^>]*(?:src|href)="?(https?:[^" >]+)',
            built.read_text(encoding="utf-8"),
        )
        assert loaded == [], f"{path} loads {loaded}"
    start = (html / "index.html").read_text(encoding="utf-8")
    assert all(
        section in start for section in ("Tutorial", "Concepts", "Guides", "Reference", "Background", "Contributing")
    )
