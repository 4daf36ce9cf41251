"""A fleet and accounts to look at, with a clock that goes when told to."""

from __future__ import annotations

import aiohttp

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.gateway.book.accounts import Accounts, Entry
from headway.gateway.book.dashboard import Dashboard
from headway.gateway.book.dashboard_state import DashboardState
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.routing.ascendra import Ascendra

CHAT = Slo(ttft_s=1.0, tbt_s=0.1)
WALL_S = 1_800_000_000.0


class Time:
    """A clock that goes when told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Scene:
    """An LP and an HP instance, their accounts and their dashboard."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.clock = Time()
        self.wall_ahead_s = 0.0
        self.accounts = Accounts()
        members = [Member("lp-0", "lp", "http://lp"), Member("hp-0", "hp", "http://hp")]
        self.fleet = Fleet(members, session=session, clock=self.clock)
        self.router = Ascendra()
        self.shadows = ShadowBoard()
        self.dashboard = Dashboard(
            self.accounts,
            self.fleet,
            self.router,
            max_queue=8,
            shadows=self.shadows,
            clock=self.clock,
            wall_clock=lambda: WALL_S + self.clock.now_s + self.wall_ahead_s,
        )
        self._requests = 0

    def offer(self, slo: Slo = CHAT, tenant: str = "a", instance: str = "lp-0") -> Entry:
        """A request that is sent to an instance, or waits at the door."""
        self._requests += 1
        entry = self.accounts.offer(f"r{self._requests}", slo, tenant, self.clock.now_s)
        if instance:
            self.accounts.place(entry, instance)
        return entry

    def serve(self, *, ttft_s: float, tokens: int = 10, slo: Slo = CHAT, tenant: str = "a") -> None:
        """A request from its arrival to its end, `tokens` tokens at 50 ms each; the clock goes on as long."""
        entry = self.offer(slo, tenant)
        self.clock.now_s += ttft_s
        self.accounts.first_token(entry, self.clock.now_s)
        self.accounts.progress(entry, 1, self.clock.now_s)
        self.clock.now_s += 0.05 * (tokens - 1)
        self.accounts.progress(entry, tokens - 1, self.clock.now_s)
        self.accounts.end(entry, Outcome.FINISHED, self.clock.now_s)

    @property
    def state(self) -> DashboardState:
        return self.dashboard.state()
