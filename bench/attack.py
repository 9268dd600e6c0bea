"""Attacks a real server for some minutes: HTTP, manifests, files of other tools, journals, certificates.

Rules: no answer is a 500, the server does not die, it answers within a bound after each campaign, and nothing that
belongs to one tenant is shown to another. `--seed N` makes the same attacks again; how many there are in the time, the
machine decides.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench._api import report as keep
from bench._attack_files import by_importers, by_journals, by_manifests
from bench._attack_http import by_bytes, by_document
from bench._attack_target import Campaign, Target
from bench._attack_tls import by_certificates, make_certificate
from tests.components.ports import free_port

SHARES = {"openapi": 35, "raw sockets": 20, "manifests": 15, "importers": 15, "journals": 5, "certificates": 10}
"""Percent of the time."""


def attack(minutes: float, seed: int) -> list[Campaign]:
    def until(name: str) -> float:
        return time.monotonic() + minutes * 60 * SHARES[name] / 100

    def dice(name: str) -> random.Random:
        return random.Random(f"{seed} {name}")

    found = []
    with tempfile.TemporaryDirectory(prefix="mandor-attack-") as folder:
        with Target(Path(folder) / "plain", free_port()) as target:
            target.make_tenants()
            for name, run in (
                ("openapi", by_document),
                ("raw sockets", by_bytes),
                ("manifests", by_manifests),
                ("importers", by_importers),
                ("journals", by_journals),
            ):
                found.append(run(target, dice(name), until(name)))
                print(f"{name}: {found[-1].tried} tried, {len(found[-1].findings)} findings", file=sys.stderr)
            logged = Campaign("log of the server")
            for text in target.tracebacks():
                logged.found(text)
            found.append(logged)
        certificate = make_certificate(Path(folder), "server")
        with Target(Path(folder) / "tls", free_port(), tls=certificate) as target:
            name = "certificates"
            found.append(by_certificates(target, dice(name), until(name)))
            print(f"{name}: {found[-1].tried} tried, {len(found[-1].findings)} findings", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="where the report goes")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    campaigns = attack(options.minutes, options.seed)
    result: dict[str, Any] = {
        "seed": options.seed,
        "minutes": options.minutes,
        "tried": sum(each.tried for each in campaigns),
        "findings": sum(len(each.findings) for each in campaigns),
        "campaigns": {each.name: each.report() for each in campaigns},
    }
    keep("attack", result, options.json)
    if result["findings"]:
        print(f"again: python bench/attack.py --minutes {options.minutes} --seed {options.seed}", file=sys.stderr)
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
