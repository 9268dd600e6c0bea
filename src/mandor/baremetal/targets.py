"""Target clusters of spares, read from a file: the pipeline that makes machines, and the readiness check."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from mandor.baremetal.ansible import AnsiblePipeline
from mandor.baremetal.fake import FakePipeline
from mandor.baremetal.gitlab import GitlabPipeline
from mandor.baremetal.incus import IncusPipeline
from mandor.baremetal.pipeline import Pipeline
from mandor.baremetal.ready import AlwaysReady, KubernetesNode, OwnNode, Ready
from mandor.errors import Invalid
from mandor.lib.owned_file import read_owned
from mandor.lib.quantity import Seconds
from mandor.lib.yaml12 import Malformed, load_all
from mandor.model.codec import from_plain
from mandor.store.base import Store


class Ansible(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    playbook: str
    inventory: str = "localhost,"


class Gitlab(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    url: str
    project: str
    ref: str = "main"
    trigger_token_file: str
    token_file: str


class Incus(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    url: str
    image: str
    type: Literal["container", "virtual-machine"] = "virtual-machine"
    profiles: tuple[str, ...] = ("default",)
    config: dict[str, str] = {}
    certificate: str = ""
    key: str = ""
    server_certificate: str = ""


class Fake(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pipeline that makes nothing, for rehearsals."""

    takes: Seconds = Seconds(0)
    fails: int = 0
    broken: bool = False
    hangs: bool = False
    stays: int = 0


class Kubernetes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    url: str
    token_file: str = ""
    ca: str = ""


class TargetSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ansible: Ansible | None = None
    gitlab: Gitlab | None = None
    incus: Incus | None = None
    fake: Fake | None = None
    ready: Kubernetes | Literal["node", "at-once"] = "node"
    create_timeout: Seconds = Seconds(1800)
    ready_timeout: Seconds = Seconds(900)
    attempts: int = 3

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.ansible, self.gitlab, self.incus, self.fake)) != 1:
            raise ValueError("a cluster needs exactly one of `ansible`, `gitlab`, `incus` and `fake`")
        if not 1 <= self.attempts <= 20:
            raise ValueError(f"attempts is {self.attempts}; it must be between 1 and 20")


@dataclass(frozen=True, slots=True)
class Target:
    pipeline: Pipeline
    ready: Ready
    create_seconds: float = 1800.0
    ready_seconds: float = 900.0
    attempts: int = 3

    @property
    def hold_seconds(self) -> float:
        """Seconds for which resources are reserved; longer than all steps may take."""
        return self.create_seconds * self.attempts + self.ready_seconds + 3600


def read_targets(file: str) -> dict[str, TargetSpec]:
    """Return the targets by cluster name; `Invalid` names the position of an error."""
    if not file:
        return {}
    try:
        documents = load_all(read_owned(Path(file)).decode())
        plain = documents[0].value if documents else {}
        return from_plain(plain, dict[str, TargetSpec])
    except OSError as error:
        raise Invalid(f"cannot read the pipelines in {file}: {error.strerror}") from error
    except (Malformed, msgspec.ValidationError) as error:
        raise Invalid(f"{file}: {error}", hint="see docs/guides/spares.md for the format") from error


def make_target(spec: TargetSpec, store: Store) -> Target:
    ready: Ready = AlwaysReady() if spec.ready == "at-once" else OwnNode(store)
    if isinstance(spec.ready, Kubernetes):
        ready = KubernetesNode(spec.ready.url, spec.ready.token_file, spec.ready.ca)
    timeouts = (float(spec.create_timeout), float(spec.ready_timeout), spec.attempts)
    return Target(_pipeline(spec), ready, *timeouts)


def _pipeline(spec: TargetSpec) -> Pipeline:
    if spec.ansible is not None:
        return AnsiblePipeline(spec.ansible.playbook, spec.ansible.inventory)
    if spec.gitlab is not None:
        return GitlabPipeline(**msgspec.structs.asdict(spec.gitlab))
    if spec.fake is not None:
        return FakePipeline(**msgspec.structs.asdict(spec.fake))
    assert spec.incus is not None
    return IncusPipeline(**msgspec.structs.asdict(spec.incus))
