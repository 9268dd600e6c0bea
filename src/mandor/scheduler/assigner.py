"""Assigns the decided node to an attempt: counts it in the table, then runs Reserve and Permit."""

from mandor.placement.decision import Decision
from mandor.placement.framework.context import Context, run_permits, run_reserve
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Overrun
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.outcomes import Outcomes
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.permits import PermitWaits
from mandor.scheduler.view import View
from mandor.scheduler.watchdog import Watchdog


class Assigner:
    """The last steps of the scheduling cycle, for single instances and for members of a gang."""

    def __init__(
        self,
        view: View,
        gangs: Gangs,
        nominations: Nominations,
        permits: PermitWaits,
        outcomes: Outcomes,
        work: PendingWork,
        watchdog: Watchdog,
    ) -> None:
        self._view = view
        self._gangs = gangs
        self._nominations = nominations
        self._permits = permits
        self._outcomes = outcomes
        self._work = work
        self._watchdog = watchdog

    def take(self, attempt: Attempt, profile: Profile, decision: Decision) -> bool:
        """Assign and admit; return whether the bind is to be written now."""
        return self.assign(attempt, profile, decision) and (attempt.context is None or self.admit(attempt))

    def assign(self, attempt: Attempt, profile: Profile, decision: Decision) -> bool:
        """Count the instance on its node; return False if the instance or the node has changed or is gone."""
        request = attempt.request
        context = None
        if not (profile.plain and profile.batches(request)) or request.member is not None:
            context = Context(profile, decision.request or request, decision.node, decision.state)
        chosen = decision.request.shape if decision.request is not None and decision.request.shape.variant else None
        if not self._view.assign(attempt, decision.node, decision.relaxed, context, chosen):
            return False
        if decision.displaces:
            self._nominations.displace(decision.node, request.priority)
        if context is not None:
            self._gangs.assigned(request)
        return True

    def admit(self, attempt: Attempt) -> bool:
        """Run Reserve and Permit; return whether the bind is to be written now.

        If not, the attempt has failed, or its binding cycle is added to the pending work.
        """
        context = attempt.context
        assert context is not None, "only profiles with plugins at these points are admitted"
        self._outcomes.reserving(attempt)
        try:
            self._watchdog.run(lambda: run_reserve(context, self._watchdog))
            permission = self._watchdog.run(lambda: run_permits(context, self._watchdog))
        except (PluginFault, Overrun) as fault:
            self._outcomes.abort(attempt, self._watchdog.describe(fault))
            return False
        if permission.denied_by is not None:
            self._outcomes.deny(attempt, permission.denied_by.name, permission.why)
            return False
        if permission.waits or not context.profile.batches(attempt.request):
            slot = self._permits.enter(context.request, context.node, permission.waits) if permission.waits else None
            self._work.running += 1
            self._outcomes.batches.begin(attempt)
            self._work.binding_cycles.append((attempt, slot))
            return False
        return True
