"""Creates all controllers, for a server and for the simulator."""

from collections.abc import Callable
from typing import Any

from mandor.controllers.autoscale import Ask, AutoscaleController, no_metrics
from mandor.controllers.base import Controller
from mandor.controllers.certificate import CertificateController
from mandor.controllers.control_plane import ControlPlaneController
from mandor.controllers.cron import CronController
from mandor.controllers.drain import DrainController
from mandor.controllers.garbage import GarbageController
from mandor.controllers.garbage_plan import Keep
from mandor.controllers.image_pin import ImagePinController
from mandor.controllers.maintenance import MaintenanceController
from mandor.controllers.network import NetworkController
from mandor.controllers.network_service import ServiceController
from mandor.controllers.node import NodeController
from mandor.controllers.node_autoscale import MachineSource, NodeAutoscaleController
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.quota import QuotaController
from mandor.controllers.rebalance import RebalanceController
from mandor.controllers.reservation import ReservationController
from mandor.controllers.restore import AFTER_SECONDS, Profiles, RestoreController
from mandor.controllers.route import RouteController
from mandor.controllers.secret_change import SecretChangeController
from mandor.controllers.secret_signal import SecretSignalController
from mandor.controllers.taint import TaintController
from mandor.controllers.volume import VolumeController
from mandor.controllers.workload import WorkloadController
from mandor.lib.clock import Clock
from mandor.lib.sealing import Sealer
from mandor.placement.framework.watch import Guard, Unguarded
from mandor.store.base import Store
from mandor.store.recorder import Recorder


def make_controllers(
    store: Store,
    clock: Clock,
    recorder: Recorder,
    *,
    times: NodeTimes | None = None,
    profiles: Profiles | None = None,
    restore_seconds: float | None = AFTER_SECONDS,
    guard: Callable[[], Guard] = Unguarded,
    ask: Ask = no_metrics,
    machines: MachineSource | None = None,
    keep: Keep | None = None,
    certificates: CertificateController | None = None,
    sealer: Sealer | None = None,
) -> list[Controller[Any]]:
    """`profiles`: scheduling profiles for finding better nodes; None: no instance is moved. `restore_seconds`: time for
    which a relaxed rule must be satisfiable before an instance moves back; None: never. `ask`: queries the metrics of
    autoscaled groups. `machines`: provisions machines for pools; None: no node autoscaling. `keep`: retention of old
    objects. `certificates`: with an ACME account; None: without one. `sealer`: opens secrets with certificates.
    """
    controllers: list[Controller[Any]] = [
        WorkloadController(store, clock, recorder),
        AutoscaleController(store, clock, recorder, ask),
        CronController(store, clock, recorder),
        NodeController(store, clock, recorder, times),
        DrainController(store, clock, recorder),
        TaintController(store, clock, recorder),
        MaintenanceController(store, clock, recorder),
        QuotaController(store, clock),
        ReservationController(store, clock, recorder),
        VolumeController(store, recorder),
        ImagePinController(store),
        ControlPlaneController(store, recorder),
        SecretChangeController(store, recorder),
        SecretSignalController(store, recorder),
        ServiceController(store, recorder),
        certificates or CertificateController(store, clock, recorder),
        NetworkController(store, clock, recorder),
        RouteController(store, clock, recorder, sealer),
        GarbageController(store, clock, keep),
    ]
    if profiles is not None:
        controllers.append(RebalanceController(store, clock, recorder, profiles, guard=guard))
    if profiles is not None and machines is not None:
        controllers.append(NodeAutoscaleController(store, clock, recorder, profiles, machines, guard=guard))
    if profiles is not None and restore_seconds is not None:
        controllers.append(
            RestoreController(store, clock, recorder, profiles, after_seconds=restore_seconds, guard=guard)
        )
    return controllers
